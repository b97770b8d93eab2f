"""The paper's theorems over random policies: which statements hold, and how the others fail."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trustclip.constraints import divergences, intervals
from trustclip.constraints.base import Method
from trustclip.constraints.gates import Side
from trustclip.constraints.registry import method
from trustclip_lab.theory import clipping, estimators, updates
from trustclip_lab.theory.cases import DOUBLE, Case, Sides, random_cases

#: Relative error that rounding may leave in a statement that holds.
ROUNDING = 1e-10
#: The paper's threshold.
DELTA = 0.07
SIDES: tuple[Side, Side] = ("outward", "strict")

EVENTS: tuple[updates.Event, updates.Event] = ("X-", "X+")
#: The part of each event that the one-sided operator acts on.
REMAINS = {"X-": "A < 0", "X+": "A > 0"}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Check:
    """The result of checking one statement.

    Args:
      statement: the claim.
      cases: number of cases it was checked on.
      error: largest relative error; None for a statement that is not an equation.
      holds: whether the statement holds.
      should: whether it is expected to hold; False for a statement that is known to be wrong.
      how: how it holds or fails, in words.
    """

    statement: str
    cases: int
    error: float | None
    holds: bool
    should: bool = True
    how: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether it holds exactly if it should."""
        return self.holds == self.should


def equality(statement: str, sides: Iterable[Sides]) -> Check:
    """Check of an equation that should hold to rounding."""
    errors = [pair.error for pair in sides]
    return Check(statement, len(errors), max(errors), max(errors) < ROUNDING)


def column(values: Iterable[float]) -> Tensor:
    """Numbers as a float64 tensor."""
    return torch.tensor(list(values), dtype=DOUBLE)


# Theorem 4.1 -----------------------------------------------------------------------------------


def clips_have_one_gradient(count: int = 80) -> list[Check]:
    """Theorem 4.1 for intervals with and without 1, and for constraints that are not intervals."""
    inside = list(zip(random_cases(count), _around_one(count), strict=True))
    outside = list(zip(random_cases(count), _beside_one(count), strict=True))
    return [
        equality(
            "4.1 ratio clip and general operator, 1 inside the interval",
            (clipping.gradient_equality(c, *b, side) for c, b in inside for side in SIDES),
        ),
        equality("4.1 both are the gradient of clip_higher", _clips(inside)),
        equality(
            "4.1 1 outside the interval, operators without min",
            (clipping.gradient_equality(c, *bounds, "strict") for c, bounds in outside),
        ),
        _interval_without_one(outside),
        equality("4.1 general operator with the exact KL and full_kl", _full_kl(count)),
        _no_clip_is("the exact KL", method("full_kl", delta=0.2), count),
        _no_clip_is("w (w-1-log w)", method("is_kl3", form="product", delta=0.05), count),
    ]


def _around_one(count: int) -> Iterator[Interval]:
    numbers = random.Random(0)
    for _ in range(count):
        yield 1 - numbers.random(), 1 + 2 * numbers.random()


def _beside_one(count: int) -> Iterator[Interval]:
    numbers = random.Random(0)
    for i in range(count):
        if i % 2:
            yield 1 + 0.5 * numbers.random(), 2 + numbers.random()
        else:
            yield 0.2 * numbers.random(), 1 - 0.5 * numbers.random()


def _clips(pairs: list[tuple[Case, Interval]]) -> Iterator[Sides]:
    for case, (low, high) in pairs:
        for side in SIDES:
            clip = method("clip_higher", low=1 - low, high=high - 1, side=side)
            yield clipping.method_equality(case, clip, clipping.ratio_operator(low, high), side)


def _full_kl(count: int) -> Iterator[Sides]:
    for case in random_cases(count):
        satisfied = torch.full_like(case.logits, case.divergence() <= 0.2, dtype=torch.bool)
        for side in SIDES:
            constraint = method("full_kl", delta=0.2, side=side)
            operator = clipping.general_operator(satisfied)
            yield clipping.method_equality(case, constraint, operator, side)


def _interval_without_one(pairs: list[tuple[Case, Interval]]) -> Check:
    wrong, elsewhere, worst = 0, 0, 0.0
    for case, bounds in pairs:
        sides = clipping.gradient_equality(case, *bounds, "outward")
        differs = (sides.left - sides.right).abs() > ROUNDING
        wrong += int(differs.sum())
        elsewhere += int((differs != clipping.between(case, *bounds)).sum())
        worst = max(worst, sides.error)
    return Check(
        "4.1 1 outside the interval, operators with min", len(pairs), worst, wrong == 0,
        # That it fails anywhere else than predicted would be a surprise.
        should=elsewhere > 0, how=f"on the {wrong} tokens between 1 and the interval, no others",
    )  # fmt: skip


def _no_clip_is(name: str, constraint: Method, count: int) -> Check:
    pair = clipping.no_ratio_clip(random_cases(count, distance=1.5), constraint)
    cut, kept = pair or (math.nan, math.nan)
    return Check(
        f"4.1 a constraint on {name} is a clip of the ratio", count, None, pair is None,
        should=False, how=f"it cuts at ratio {cut:.3g} and keeps at {kept:.3g}",
    )  # fmt: skip


# Theorem 4.2 -----------------------------------------------------------------------------------


def k3_is_an_interval() -> list[Check]:
    """Theorem 4.2: the bounds, the equivalence, the asymmetry, and the reachable ratios."""
    deltas = torch.logspace(-6, math.log10(20), 200, dtype=DOUBLE).tolist()
    lambert = (
        Sides(column(clipping.lambert_bounds(d)), column(clipping.bisected_bounds(d)))
        for d in deltas
    )
    margins = [(sum(intervals.ratios(intervals.log_k3(d))) - 2) / (4 * d / 3) for d in deltas]
    return [
        equality("4.2 bounds: the library and bisection", map(clipping.bounds_of_k3, deltas)),
        equality("4.2 bounds: Lambert's W (Eq. 10) and bisection", lambert),
        _equivalence(deltas),
        equality("4.2 atr and clip_higher with its bounds", _clips_like_atr()),
        Check(
            "4.2 asymmetry, 1 - l < u - 1", len(deltas), None, min(margins) > 0,
            how=f"u + l - 2 is {margins[-1]:.3f} to {max(margins):.3f} of 4 delta / 3",
        ),
        _slopes(),
        _series(),
        *_reachable(deltas),
    ]  # fmt: skip


def _clips_like_atr() -> Iterator[Sides]:
    low, high = intervals.ratios(intervals.log_k3(DELTA))
    for side in SIDES:
        atr = method("atr", delta=DELTA, side=side)
        clip = method("clip_higher", low=1 - low, high=high - 1, side=side)
        for case in random_cases(100):
            yield Sides(case.gradient(atr), case.gradient(clip))


def _equivalence(deltas: list[float]) -> Check:
    x = torch.linspace(-25, 5, 4001, dtype=DOUBLE)
    value, ratio = divergences.k3(x), x.exp()
    wrong, count = 0, 0
    for delta in deltas:
        low, high = clipping.bisected_bounds(delta)
        clear = (value - delta).abs() > 1e-12 * delta
        wrong += int(((value <= delta) != ((low <= ratio) & (ratio <= high)))[clear].sum())
        count += int(clear.sum())
    return Check("4.2 k3 <= delta is l <= w <= u", count, None, wrong == 0)


def _slopes() -> Check:
    t = torch.linspace(1e-4, 0.9999, 2000, dtype=DOUBLE)
    excess = divergences.k3((1 - t).log()) - divergences.k3((1 + t).log())
    return Check(
        "4.2 why: k3(1 - t) > k3(1 + t) for t in (0, 1)", len(t), None, bool((excess > 0).all()),
        how="slopes t / (1 - t) > t / (1 + t); the paper compares limits only",
    )  # fmt: skip


def _series() -> Check:
    shares = []
    for delta in torch.logspace(-3, -1, 60, dtype=DOUBLE).tolist():
        pairs = zip(clipping.bisected_bounds(delta), clipping.series_bounds(delta), strict=True)
        shares += [abs(a - b) / (math.sqrt(2 * delta) ** 5 / 4320) for a, b in pairs]
    return Check(
        "4.2 series in s = sqrt(2 delta) to s^4", len(shares), None, max(shares) < 1.2,
        how=f"remainder {min(shares):.2f} to {max(shares):.2f} of s^5 / 4320 up to delta 0.1",
    )  # fmt: skip


def _reachable(deltas: list[float]) -> list[Check]:
    ranges = [
        (intervals.ratios(intervals.log_k3(d))[1], *clipping.reachable_bounds(d, p / 100))
        for d in deltas
        for p in range(1, 100)
    ]
    low, high = intervals.ratios(intervals.log_k3(DELTA))
    return [
        Check(
            "4.2 u is the maximum of w over policies", len(ranges), None,
            all(u == top for u, _, top in ranges), should=False,
            how=f"w <= 1/p: not for p > 1/u, {1 / high:.4f} at delta 0.07",
        ),
        Check(
            "4.2 asymmetry of the ratios a policy can reach", len(ranges), None,
            all(top - 1 > 1 - bottom for _, bottom, top in ranges), should=False,
            how=f"narrower above for p > 1/(2 - l), {1 / (2 - low):.4f} at delta 0.07",
        ),
    ]  # fmt: skip


# Theorems 5.1 and 5.2 --------------------------------------------------------------------------


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
            more=f"; median {sizes[len(sizes) // 2]:.1f} times the true value, wrong sign in "
            f"{flips:.1%}",
        ),
        _second_order(f"5.2 with the missing factor pi(a), {event}", corrected),
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
    """The paper's reading of X-: an advantageous action that ATR cuts and the clip keeps."""
    cases = [Case(c.logits, c.logits_old, c.advantages.abs(), c.visits) for c in _with_event("X-")]
    changes = [abs(updates.entropy_difference(c, DELTA, "X-", 1.0, side="outward")) for c in cases]
    return Check(
        "5.2 X- of A > 0 changes the entropy, one-sided operator", len(cases), None,
        max(changes) > 0, should=False, how="both methods keep these tokens: no difference",
    )  # fmt: skip


def _first_update() -> Check:
    cases = [Case(c.logits_old, c.logits_old, c.advantages) for c in random_cases(50)]
    changes = [
        abs(updates.entropy_difference(c, DELTA, event, 1.0)) for c in cases for event in EVENTS
    ]
    return Check(
        "5.2 the first update after sampling differs", len(changes), None, max(changes) > 0,
        should=False, how="every ratio is 1: the same gradient",
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
            how=f"median error {wrong[len(wrong) // 2]:.0%}",
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
