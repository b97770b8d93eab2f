"""Ratio intervals: tables, bisection over the whole range of thresholds, and identities."""

import math
from decimal import Decimal, localcontext
from typing import Any

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trustclip as tc
from trustclip.constraints import intervals


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def bernoulli_kl(p: torch.Tensor, delta: float) -> list[torch.Tensor]:
    """Ratio bounds for tokens of old probability ``p``."""
    return [bound.exp() for bound in intervals.log_bernoulli_kl(p.log(), delta)]


# The whole range -------------------------------------------------------------------------------


def k3(x: Decimal) -> Decimal:
    return x.exp() - 1 - x


EXACT = {
    "kl2": lambda x: x * x / 2,
    "k3": k3,
    "is_k3": lambda x: x.exp() * k3(-x),
}


@pytest.mark.parametrize("name", EXACT)
@given(delta=st.floats(math.log(1e-14), math.log(700)).map(math.exp))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_bounds_keep_twelve_digits_of_their_distance_from_zero(name: str, delta: float) -> None:
    """Moved by 1e-12 of itself, a bound is inside on one side and outside on the other."""
    low, high = getattr(intervals, f"log_{name}")(delta)
    with localcontext(prec=50):
        for bound in (low, high):
            if math.isinf(bound):
                assert name == "is_k3" and delta >= 1
                continue
            x, e = Decimal(bound), Decimal(bound) * Decimal("1e-12")
            assert EXACT[name](x - e) <= delta <= EXACT[name](x + e)


@pytest.mark.parametrize("delta", [1e-8, 1e-7, 9.9e-4, 1e-3, 0.07, 1.0, 50.0, 700.0])
def test_bernoulli_kl_keeps_twelve_digits_of_its_distance_from_zero(delta: float) -> None:
    shares = [10.0**-k for k in range(1, 13)]
    logps = [math.log(p) for p in (*shares, 0.4, 0.5)] + [math.log1p(-p) for p in shares]
    low, high = intervals.log_bernoulli_kl(doubles(*logps), delta)
    with localcontext(prec=60):

        def divergence(p: Decimal, x: Decimal) -> Decimal:
            q = p * x.exp()
            return (1 - p) * ((1 - p) / (1 - q)).ln() - p * x if q < 1 else Decimal("inf")

        for logp, *bounds in zip(logps, low.tolist(), high.tolist(), strict=True):
            p = Decimal(logp).exp()
            for bound in bounds:
                if bound < -700:
                    continue  # no ratio is that small
                x, e = Decimal(bound), Decimal(bound) * Decimal("1e-12")
                assert divergence(p, x - e) <= delta <= divergence(p, x + e), (logp, bound)


def test_bernoulli_kl_takes_a_threshold_for_each_token() -> None:
    logp = doubles(1e-4, 0.02, 0.3, 0.5, 0.9, 0.999).log()
    deltas = doubles(500.0, 2.5, 0.07, 1e-8, 45.0, 1e-3)
    each = torch.stack(intervals.log_bernoulli_kl(logp, deltas))
    alone = [
        torch.stack(intervals.log_bernoulli_kl(logp[i], delta))
        for i, delta in enumerate(deltas.tolist())
    ]
    torch.testing.assert_close(each, torch.stack(alone, dim=1), rtol=1e-11, atol=0)


def test_bernoulli_kl_keeps_the_shape_and_takes_probability_one() -> None:
    p = doubles(0.3, 0.9, 1.0, 0.5, 1e-3, 0.99).view(2, 3)
    low, high = bernoulli_kl(p, 0.05)
    assert low.shape == high.shape == (2, 3)
    assert low.dtype == torch.float64
    assert low[0, 2].item() == pytest.approx(math.exp(-0.05))
    assert high[0, 2].item() == pytest.approx(1.0)


@pytest.mark.parametrize("delta", [0.05, 50.0, doubles(0.05, 1e-3, 50.0, 0.4)], ids=str)
def test_bernoulli_kl_of_single_precision_is_that_of_double_rounded(delta) -> None:
    single = torch.tensor([0.1, 0.9, 1e-6, 0.5]).log()
    low, high = intervals.log_bernoulli_kl(single, delta)
    want_low, want_high = intervals.log_bernoulli_kl(single.double(), delta)
    assert low.dtype == high.dtype == torch.float32
    torch.testing.assert_close(low, want_low.float(), rtol=2e-7, atol=1e-12)
    torch.testing.assert_close(high, want_high.float(), rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("logp", [-300.5, -1e4, -math.inf])
def test_bernoulli_kl_counts_what_no_sampler_draws_as_e_to_minus_300(logp: float) -> None:
    got, want = (intervals.log_bernoulli_kl(doubles(x), 0.05) for x in (logp, -300.0))
    assert got == want


def test_thresholds_that_differ_from_token_to_token() -> None:
    each = doubles(0.02, 0.3, 0.9)
    functions: tuple[Any, ...] = (
        intervals.log_kl1, intervals.log_kl2, lambda d: intervals.log_offsets(d, d)
    )  # fmt: skip
    for function in functions:
        low, high = function(each)
        want = doubles(*(x for delta in each.tolist() for x in function(delta))).view(3, 2)
        torch.testing.assert_close(torch.stack((low, high), -1), want, rtol=1e-15, atol=0)


# tc.interval -----------------------------------------------------------------------------------


def test_interval_by_name() -> None:
    assert tc.interval("atr", delta=0.07) == pytest.approx(
        (0.670971738250, 1.422216736280), abs=1e-11
    )
    assert tc.interval("clip") == pytest.approx((0.8, 1.2), rel=1e-15)
    assert intervals.log_offsets(1.0, 0.2) == (-math.inf, math.log(1.2))
    assert tc.interval("clip_higher") == pytest.approx((0.8, 1.28), rel=1e-15)
    assert tc.interval("kl1") == pytest.approx((math.exp(-0.07), math.exp(0.07)))
    assert tc.interval("kl1", sign="kl_old_new") == pytest.approx((math.exp(-0.07), math.inf))
    assert tc.interval("kl1", sign="kl_new_old") == pytest.approx((0.0, math.exp(0.07)))
    assert tc.interval("kl2") == pytest.approx((0.687862896894, 1.45377807775), rel=1e-11)
    assert tc.interval("is_kl3") == pytest.approx((0.649979351242, 1.39683566749), rel=1e-11)
    assert tc.interval(tc.method("atr", delta=0.05)) == intervals.ratios(intervals.log_k3(0.05))
    assert all(isinstance(bound, float) for bound in tc.interval("atr"))
    with pytest.raises(ValueError, match="name must be text, got ATR"):
        tc.interval(tc.method("atr"), delta=0.1)


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.3, 0.9, 0.999])
def test_interval_that_depends_on_the_token(p: float) -> None:
    got = [float(bound) for bound in tc.interval("dynamic_clip", p_old=doubles(p))]
    assert got == pytest.approx(oracle.dynamic_bounds(p, 0.16, 0.20, 10.0), rel=1e-12)
    low, high = (math.exp(x) for x in oracle.bernoulli_log_interval(p, 0.05))
    got = [float(bound) for bound in tc.interval("trgppo", p_old=doubles(p))]
    assert got == pytest.approx((min(low, 0.8), max(high, 1.2)), rel=1e-9)


@pytest.mark.parametrize("name", ["dynamic_clip", "trgppo"])
@pytest.mark.parametrize("p", [0.0, -0.1, 1.5, math.nan])
def test_interval_at_what_is_no_probability(name: str, p: float) -> None:
    with pytest.raises(ValueError, match="p_old"):
        tc.interval(name, p_old=doubles(0.5, p))


@pytest.mark.parametrize("name", ["dynamic_clip", "trgppo"])
def test_interval_is_in_double_precision(name: str) -> None:
    single = torch.tensor([0.25, 0.5], requires_grad=True)
    bounds: Any = tc.interval(name, p_old=single)
    torch.testing.assert_close(bounds, tc.interval(name, p_old=single.double()), rtol=0, atol=0)
    assert [bound[0] for bound in bounds] == [*tc.interval({"name": name}, p_old=0.25)]
    with pytest.raises(ValueError, match="p_old"):
        tc.interval(name)


@pytest.mark.parametrize(
    "method", [tc.method("is_kl3", form="product"), tc.method("soft_gate"), tc.method("full_kl")]
)
def test_no_interval(method: tc.Method) -> None:
    with pytest.raises(ValueError, match="interval"):
        tc.interval(method)


@pytest.mark.parametrize("delta", [700.0, 1e6, 1e300])
@pytest.mark.parametrize("name", ["kl1", "kl2", "atr", "is_kl3"])
def test_a_threshold_beyond_all_ratios_bounds_none_from_above(name: str, delta: float) -> None:
    low, high = tc.interval(name, delta=delta)
    assert 0 <= low < 1e-15 and 1 < high <= math.inf
    tc.method(name, delta=delta).twins  # noqa: B018 (no overflow there either)
