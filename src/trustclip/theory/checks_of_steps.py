"""Theorems 5.1 and 5.2 and the estimators over random policies."""

from collections.abc import Sequence

from trustclip.gates import Side
from trustclip.theory import estimators, updates
from trustclip.theory.cases import Case, Sides, random_cases
from trustclip.theory.checks import DELTA, ROUNDING, Check, column, equality

EVENTS: tuple[updates.Event, updates.Event] = ("X-", "X+")
#: What is left of the events under the one-sided operator.
REMAINS = {"X-": "A < 0", "X+": "A > 0"}


def _with_event(event: updates.Event, side: Side = "strict", count: int = 220) -> list[Case]:
    """Random states in which the event happens to some action."""
    return [c for c in random_cases(count) if updates.indicator(c, DELTA, event, side).any()]


def steps_differ() -> list[Check]:
    """Theorem 5.1 under both events, with the strict operator and with the one-sided one."""
    return [check for event in EVENTS for check in _steps_differ(event)]


def _steps_differ(event: updates.Event) -> list[Check]:
    cases = _with_event(event)

    def pairs(side: Side, assumed: Side) -> list[Sides]:
        return [updates.logit_difference(c, DELTA, event, side, assumed) for c in cases]

    errors = [pair.error for pair in pairs("outward", "strict")]
    wrong = sum(error > ROUNDING for error in errors)
    return [
        equality(f"5.1 as stated, {event}, strict operator", pairs("strict", "strict")),
        Check(
            f"5.1 as stated, {event}, one-sided operator", len(cases), max(errors), wrong == 0,
            should=False, how=f"wrong in {wrong / len(cases):.0%} of the states",
        ),
        equality(
            f"5.1 {event} cut down to {REMAINS[event]}, one-sided operator",
            pairs("outward", "outward"),
        ),
    ]  # fmt: skip


def entropies_differ() -> list[Check]:
    """Theorem 5.2 as stated, corrected, for the natural gradient, and one-sided."""
    checks = [check for event in EVENTS for check in _entropies_differ(event)]
    return [*checks, _kept_by_both(), _first_update()]


def _entropies_differ(event: updates.Event) -> list[Check]:
    cases, fewer = _with_event(event), _with_event(event, "outward")
    stated = [updates.entropy_slope(c, DELTA, event, "stated") for c in cases]
    right = [updates.entropy_slope(c, DELTA, event) for c in cases]
    flips = sum(a * b < 0 for a, b in zip(stated, right, strict=True)) / len(cases)
    sizes = sorted(abs(a / b) for a, b in zip(stated, right, strict=True))
    orders = [updates.remainder_order(c, DELTA, event, "stated") for c in cases]
    natural = [
        updates.remainder_order(c, DELTA, event, "stated", by_natural_gradient=True) for c in cases
    ]
    corrected = [updates.remainder_order(c, DELTA, event) for c in cases]
    one_sided = [updates.remainder_order(c, DELTA, event, side="outward") for c in fewer]
    return [
        _second_order(
            f"5.2 as stated, {event}, policy gradient", orders, should=False,
            more=f"; {sizes[len(sizes) // 2]:.1f} times the truth in the median, wrong sign in "
            f"{flips:.1%}",
        ),
        _second_order(f"5.2 with the lost factor pi(a), {event}", corrected),
        _second_order(f"5.2 as stated, {event}, natural gradient", natural),
        _second_order(
            f"5.2 with the factor, {event} cut down to {REMAINS[event]}, one-sided operator",
            one_sided,
        ),
    ]  # fmt: skip


def _second_order(
    statement: str, orders: Sequence[float], should: bool = True, more: str = ""
) -> Check:
    ranked = sorted(orders)
    low, middle, high = (ranked[round(q * (len(ranked) - 1))] for q in (0.02, 0.5, 0.98))
    how = f"remainder of order {middle:.2f} in eta ({low:.2f} to {high:.2f}){more}"
    return Check(statement, len(ranked), None, low > 1.9 and high < 2.1, should, how)


def _kept_by_both() -> Check:
    """What the paper says of X-: an advantageous action that ATR cuts and the clip keeps."""
    cases = [Case(c.logits, c.logits_old, c.advantages.abs(), c.visits) for c in _with_event("X-")]
    changes = [abs(updates.entropy_difference(c, DELTA, "X-", 1.0, side="outward")) for c in cases]
    return Check(
        "5.2 X- of A > 0 changes the entropy, one-sided operator", len(cases), None,
        max(changes) > 0, should=False, how="both methods keep these tokens: no difference at all",
    )  # fmt: skip


def _first_update() -> Check:
    cases = [Case(c.logits_old, c.logits_old, c.advantages) for c in random_cases(50)]
    changes = [
        abs(updates.entropy_difference(c, DELTA, event, 1.0)) for c in cases for event in EVENTS
    ]
    return Check(
        "5.2 the first update after sampling differs", len(changes), None, max(changes) > 0,
        should=False, how="every ratio is 1: one method",
    )  # fmt: skip


# Estimators ------------------------------------------------------------------------------------


def estimators_estimate() -> list[Check]:
    """Direction, bias and variance of the token estimators."""
    cases = [c for distance in (0.1, 0.6, 2.0) for c in random_cases(150, distance=distance)]
    exact = [estimators.exact_divergences(c) for c in cases]
    old_new, new_old, chi2 = (
        [e[key] for e in exact] for key in ("kl_old_new", "kl_new_old", "chi2")
    )

    def means(name: str, targets: list[float]) -> list[Sides]:
        values = [estimators.moments(c, name).mean for c in cases]
        return [Sides(column([a]), column([b])) for a, b in zip(values, targets, strict=True)]

    product = [a - b for a, b in zip(chi2, new_old, strict=True)]
    wrong = sorted(pair.error for pair in means("k3", new_old))
    return [
        equality("mean of k1 over y ~ old is KL(old || new)", means("k1", old_new)),
        equality("mean of k3 over y ~ old is KL(old || new)", means("k3", old_new)),
        equality("mean of 1 - w + w log w is KL(new || old)", means("is_k3", new_old)),
        equality("mean of w (w-1-log w) is chi2 - KL(new || old)", means("k3_product", product)),
        Check(
            "mean of k3 over y ~ old is KL(new || old), as Eq. 4", len(cases), wrong[-1],
            wrong[-1] < ROUNDING, should=False,
            how=f"off by {wrong[len(wrong) // 2]:.0%} in the median",
        ),
        *_variances(cases),
    ]  # fmt: skip


def _variances(cases: list[Case]) -> list[Check]:
    def excess(case: Case) -> float:
        return estimators.moments(case, "k3").std - estimators.moments(case, "k1").std

    near = [excess(c) for c in cases if c.ratio.max() <= 2]
    far = [excess(c) for c in cases if c.ratio.max() > 2]
    start = estimators.crossing(column([0.01, 0.99]).log(), column([1, 0]))
    return [
        Check("k3 varies less than k1, every ratio at most 2", len(near), None, max(near) < 0),
        Check(
            "k3 varies less than k1, some ratio above 2", len(far), None, max(far) < 0,
            should=False, how=f"more in {sum(e > 0 for e in far) / len(far):.0%}; if a token of "
            f"p = 0.01 rises, from KL(old || new) = {start:.4f} on",
        ),
    ]  # fmt: skip
