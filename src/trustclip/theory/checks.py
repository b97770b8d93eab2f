"""What becomes of a statement, and Theorems 4.1 and 4.2 over random policies."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trustclip import divergences, intervals
from trustclip.gates import Side
from trustclip.method import Method, method
from trustclip.theory import clipping
from trustclip.theory.cases import DOUBLE, Case, Sides, random_cases

#: Relative error that rounding may leave in a statement that holds.
ROUNDING = 1e-10
#: The paper's threshold.
DELTA = 0.07
SIDES: tuple[Side, Side] = ("outward", "strict")

Interval = tuple[float, float]


@dataclass(frozen=True)
class Check:
    """What became of one statement.

    Args:
      statement: what was claimed.
      cases: how many it was tried on.
      error: worst relative error; None where the statement is no equation.
      holds: whether the statement holds.
      should: whether it should; False for a statement that this project says is wrong.
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
    """Theorem 4.1 for intervals with 1 and without, and for constraints that are no interval."""
    inside = list(zip(random_cases(count), _around_one(count), strict=True))
    outside = list(zip(random_cases(count), _beside_one(count), strict=True))
    return [
        equality(
            "4.1 ratio clip and general operator, 1 inside the interval",
            (clipping.gradient_equality(c, *b, side) for c, b in inside for side in SIDES),
        ),
        equality("4.1 both are the gradient of our clip_higher", _our_clips(inside)),
        equality(
            "4.1 1 outside the interval, operators without min",
            (clipping.gradient_equality(c, *bounds, "strict") for c, bounds in outside),
        ),
        _interval_without_one(outside),
        equality("4.1 general operator with the exact KL and our full_kl", _our_full_kl(count)),
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


def _our_clips(pairs: list[tuple[Case, Interval]]) -> Iterator[Sides]:
    for case, (low, high) in pairs:
        for side in SIDES:
            ours = method("clip_higher", low=1 - low, high=high - 1, side=side)
            yield clipping.method_equality(case, ours, clipping.ratio_operator(low, high), side)


def _our_full_kl(count: int) -> Iterator[Sides]:
    for case in random_cases(count):
        satisfied = torch.full_like(case.logits, case.divergence() <= 0.2, dtype=torch.bool)
        for side in SIDES:
            ours = method("full_kl", delta=0.2, side=side)
            operator = clipping.general_operator(satisfied)
            yield clipping.method_equality(case, ours, operator, side)


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


def _no_clip_is(name: str, chosen: Method, count: int) -> Check:
    pair = clipping.no_ratio_clip(random_cases(count, distance=1.5), chosen)
    cut, kept = pair or (math.nan, math.nan)
    return Check(
        f"4.1 a constraint on {name} is a clip of the ratio", count, None, pair is None,
        should=False, how=f"it cuts at ratio {cut:.3g} and keeps at {kept:.3g}",
    )  # fmt: skip


# Theorem 4.2 -----------------------------------------------------------------------------------


def k3_is_an_interval() -> list[Check]:
    """Theorem 4.2: the bounds, the equivalence, the asymmetry, and what can be reached."""
    deltas = torch.logspace(-6, math.log10(20), 200, dtype=DOUBLE).tolist()
    lambert = (
        Sides(column(clipping.lambert_bounds(d)), column(clipping.bisected_bounds(d)))
        for d in deltas
    )
    margins = [(sum(intervals.k3(d)) - 2) / (4 * d / 3) for d in deltas]
    return [
        equality("4.2 bounds: ours and roots by bisection", map(clipping.bounds_of_k3, deltas)),
        equality("4.2 bounds: Lambert's W (Eq. 10) and roots by bisection", lambert),
        _equivalence(deltas),
        equality("4.2 atr and clip_higher with its bounds", _twins()),
        Check(
            "4.2 asymmetry, 1 - l < u - 1", len(deltas), None, min(margins) > 0,
            how=f"u + l - 2 is {margins[-1]:.3f} to {max(margins):.3f} of 4 delta / 3",
        ),
        _slopes(),
        _series(),
        *_reachable(deltas),
    ]  # fmt: skip


def _twins() -> Iterator[Sides]:
    low, high = intervals.k3(DELTA)
    for side in SIDES:
        atr = method("atr", delta=DELTA, side=side)
        twin = method("clip_higher", low=1 - low, high=high - 1, side=side)
        for case in random_cases(100):
            yield Sides(case.gradient(atr), case.gradient(twin))


def _equivalence(deltas: list[float]) -> Check:
    x = torch.linspace(-25, 5, 4001, dtype=DOUBLE)
    value, ratio = divergences.k3(x), x.exp()
    wrong, tried = 0, 0
    for delta in deltas:
        low, high = clipping.bisected_bounds(delta)
        clear = (value - delta).abs() > 1e-12 * delta
        wrong += int(((value <= delta) != ((low <= ratio) & (ratio <= high)))[clear].sum())
        tried += int(clear.sum())
    return Check("4.2 k3 <= delta is l <= w <= u", tried, None, wrong == 0)


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
        (intervals.k3(d)[1], *clipping.reachable_bounds(d, p / 100))
        for d in deltas
        for p in range(1, 100)
    ]
    low, high = intervals.k3(DELTA)
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
