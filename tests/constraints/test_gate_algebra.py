"""The gates, token by token, against the same in plain Python floats.

Quick and complete: these are the tests that mutants of the module have to survive.
"""

import itertools
import math
from typing import Any

import pytest
import torch

from trustclip import TokenBatch
from trustclip.constraints import gates, masked

INF, NAN = math.inf, math.nan
#: Log-ratios, advantages and bounds that meet each other in every combination.
RATIOS = (0.0, 0.25, -0.25, 0.2, -0.2, 3.0, -3.0, 40.0, -800.0, NAN)
ADVANTAGES = (0.0, 1.0, -1.0, 2.5, -0.5)
GRID = list(itertools.product(RATIOS, ADVANTAGES, (True, False)))
LOW, HIGH = -0.2, 0.2


def batch() -> tuple[TokenBatch, list[tuple[float, float, bool]]]:
    """One row with every combination; the old log-probability is 0."""
    x, a, mask = zip(*GRID, strict=True)
    logp = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([a], dtype=torch.float64)
    return TokenBatch(logp, torch.zeros_like(logp), advantages, torch.tensor([mask])), GRID


def exp(x: float) -> float:
    return INF if x > 700 else math.exp(x)


def result(surrogate: Any, of: TokenBatch) -> list[tuple[float, float, bool]]:
    """Objective, its gradient in the log-probability and the kept flag of each token."""
    (grad,) = torch.autograd.grad(surrogate.objective.sum(), of.logp, allow_unused=True)
    grad = torch.zeros_like(of.logp) if grad is None else grad
    columns = (surrogate.objective[0].tolist(), grad[0].tolist(), surrogate.kept[0].tolist())
    return list(zip(*columns, strict=True))


def check(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted) == len(GRID)
    for place, got, want in zip(GRID, found, wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-12, nan_ok=True), place


def hard(x: float, a: float, mask: bool, kept: bool, fill: float) -> tuple[float, float, bool]:
    """Value, gradient and flag of a hard gate."""
    if not mask:
        return 0.0, 0.0, False
    if kept or x != x:
        return exp(x) * a, exp(x) * a, True
    return fill * a, 0.0, False


def outward(x: float, a: float) -> bool:
    return x * ((a > 0) - (a < 0)) > 0


@pytest.mark.parametrize("side", ["outward", "strict"])
@pytest.mark.parametrize("dropping", [False, True])
def test_interval(side: Any, dropping: bool) -> None:
    own, grid = batch()
    dropped = (own.advantages == 2.5) if dropping else None
    found = result(gates.interval(own, (LOW, HIGH), side, dropped=dropped), own)
    wanted = []
    for x, a, mask in grid:
        inside = LOW <= x <= HIGH
        kept = inside or (side == "outward" and not outward(x, a))
        kept = kept and not (dropping and a == 2.5)
        wanted.append(hard(x, a, mask, kept, exp(min(max(x, LOW), HIGH))))
    check(found, wanted)


def test_bounds_are_inside_and_may_be_tensors() -> None:
    own, grid = batch()
    plain = result(gates.interval(own, (LOW, HIGH)), own)
    low, high = torch.full_like(own.logp, LOW), torch.full_like(own.logp, HIGH)
    check(result(gates.interval(own, (low, high)), own), plain)
    strict = gates.interval(own, (LOW, HIGH), "strict").kept[0].tolist()
    for (x, _, mask), kept in zip(grid, strict, strict=True):
        assert kept == (mask and (abs(x) <= 0.2 or x != x))


def test_levels_other_than_the_token() -> None:
    logp = torch.tensor([[0.1, 0.5, -0.3], [0.4, 0.4, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    own = TokenBatch(logp, torch.zeros_like(logp), torch.ones_like(logp), mask)
    found = gates.interval(own, (-0.2, 0.2), level="sequence")
    assert found.kept.tolist() == [[True] * 3, [False] * 3]
    assert found.objective[0].tolist() == pytest.approx([math.exp(0.1)] * 3)
    assert found.objective[1].tolist() == pytest.approx([math.exp(0.2)] * 2 + [0.0])


@pytest.mark.parametrize("fill", [1.0, 1.5])
def test_hard(fill: float) -> None:
    own, grid = batch()
    kept = own.advantages > 0
    found = gates.hard(own, kept) if fill == 1.0 else gates.hard(own, kept, fill=fill)
    check(result(found, own), [hard(x, a, m, a > 0, fill) for x, a, m in grid])


def test_hard_weighs_by_another_ratio() -> None:
    own, grid = batch()
    other = torch.full_like(own.logp, 0.5)
    found = gates.hard(own, own.advantages > 0, log_ratio=other).objective[0].tolist()
    wanted = [(math.exp(0.5) if a > 0 else 1.0) * a * m for _, a, m in grid]
    assert found == pytest.approx(wanted)


def test_by_sign() -> None:
    own, grid = batch()
    found = result(gates.by_sign(own, (-0.25, 3.0), (-3.0, 0.2)), own)
    wanted = []
    for x, a, mask in grid:
        low, high = (-0.25, 3.0) if a > 0 else (-3.0, 0.2) if a < 0 else (-INF, INF)
        fill = exp(min(max(x, low), high))
        wanted.append(hard(x, a, mask, low <= x <= high, fill))
    check(found, wanted)


def test_keeps_gradient_and_moves_outward() -> None:
    own, grid = batch()
    x, a = own.log_ratio.detach(), own.advantages
    nothing, everything = torch.zeros_like(own.mask), torch.ones_like(own.mask)
    moves = gates.moves_outward(x, a)[0].tolist()
    kept = gates.keeps_gradient(nothing, x, a, "outward")[0].tolist()
    for (ratio, advantage, mask), moved, keeps in zip(grid, moves, kept, strict=True):
        assert moved == (mask and outward(ratio, advantage)) and keeps == (not moved)
    assert not gates.keeps_gradient(nothing, x, a, "strict").any()
    for side in ("outward", "strict"):
        assert gates.keeps_gradient(everything, x, a, side).all()
    with pytest.raises(ValueError, match="unknown side 'Strict'; did you mean 'strict'"):
        gates.keeps_gradient(nothing, x, a, "Strict")  # type: ignore[arg-type]


def test_above_ceiling() -> None:
    own, grid = batch()
    assert gates.above_ceiling(own, None) is None
    for ceiling in (1.0, math.exp(0.25), 2.0):
        found = gates.above_ceiling(own, ceiling)
        assert found is not None
        for (x, a, mask), above in zip(grid, found[0].tolist(), strict=True):
            assert above == (mask and a < 0 and x > math.log(ceiling))


@pytest.mark.parametrize("some", [False, True])
def test_score_function(some: bool) -> None:
    own, grid = batch()
    weight = own.logp * 0 + 0.5  # with a gradient, which must not be followed
    weight = torch.where(own.logp.isnan(), 0.5, weight)
    found = result(gates.score_function(own, weight, own.advantages > 0 if some else None), own)
    wanted = []
    for x, a, mask in grid:
        kept = mask and (not some or a > 0 or x != x)
        value = NAN if x != x else 0.5 * a
        wanted.append((value if mask else 0.0, value if kept else 0.0, kept))
    check(found, wanted)


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_rollback(slope: float) -> None:
    own, grid = batch()
    found = result(gates.rollback(own, own.advantages > 0, slope), own)
    wanted = []
    for x, a, mask in grid:
        kept = mask and (a > 0 or x != x)
        value = exp(x) * a
        wanted.append(
            (value, value if kept else -slope * value, kept) if mask else (0.0, 0.0, False)
        )
    check(found, wanted)


def test_soft() -> None:
    own, grid = batch()
    found = result(gates.soft(own, own.logp.sigmoid()), own)
    wanted = []
    for x, a, mask in grid:
        s = NAN if x != x else 1 / (1 + math.exp(min(-x, 700.0)))
        wanted.append((s * a, s * (1 - s) * a, True) if mask else (0.0, 0.0, False))
    check(found, wanted)


# Arithmetic of masked tokens ---------------------------------------------------------------------

X = torch.tensor([[1.0, 2.0, 4.0], [10.0, NAN, 3.0], [7.0, 7.0, 7.0], [5.0, INF, NAN]])
MASK = torch.tensor([[True, True, True], [True, False, True], [False] * 3, [True, False, False]])


def test_masked_arithmetic() -> None:
    x = X.double().requires_grad_()
    value = masked.masked_sum(x, MASK)
    assert value.item() == pytest.approx(25.0)
    (grad,) = torch.autograd.grad(value, x)
    assert grad.isfinite().all() and not grad[~MASK].any()


def test_ratios_of_any_size() -> None:
    x = torch.tensor([-1e9, 0.0, 40.0, 40.5, 1e9, NAN], dtype=torch.float64, requires_grad=True)
    for value, shift in ((masked.safe_exp(x), 0), (masked.safe_expm1(x), 1)):
        top = math.exp(40) - shift
        wanted = [-shift, 1 - shift, top, top, top, NAN]
        assert value.tolist() == pytest.approx(wanted, nan_ok=True)
        (grad,) = torch.autograd.grad(value.sum(), x)
        assert grad.tolist() == pytest.approx([0, 1, math.exp(40), 0, 0, NAN], nan_ok=True)


def test_a_ratio_is_the_same_whatever_stands_beside_it_and_wherever_it_is() -> None:
    """The limit is left out where a look at the numbers shows that none needs it."""
    x = torch.tensor([-1e9, -40.5, -40.0, 0.0, 40.0, 40.5, 1e9], dtype=torch.float64)
    wanted = x.clamp(max=40).exp()
    for first, last in itertools.combinations(range(len(x) + 1), 2):
        assert torch.equal(masked.safe_exp(x[first:last]), wanted[first:last])
    assert torch.equal(torch.compile(masked.safe_exp, backend="eager")(x), wanted)
    assert masked.safe_exp(x.to("meta")).shape == x.shape
    assert masked.within(x[2:5], 40) and not masked.within(x[1:5], 40)
    assert masked.seen_finite(x) and not masked.seen_finite(x.log())


def test_types_are_widened_and_kept() -> None:
    half, single, double = (
        torch.zeros(2, dtype=d) for d in (torch.bfloat16, torch.float32, torch.float64)
    )
    assert masked.widen(half).dtype == masked.widen(half.half()).dtype == torch.float32
    assert masked.widen(single) is single and masked.widen(double) is double
    chosen = masked.choose(torch.tensor([True, False]), 0.1, 0.2, like=double)
    assert chosen.dtype == torch.float64 and chosen.tolist() == [0.1, 0.2]
    assert masked.zero_masked(half + 1, torch.tensor([True, False])).tolist() == [1.0, 0.0]
