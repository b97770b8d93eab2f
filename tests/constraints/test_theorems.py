"""The theorems that need no policy: clipping forms agree in gradient, k3 is an interval."""

import math

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import trustclip as tc
from trustclip.constraints import divergences, intervals

DOUBLE = torch.float64
TOKENS = st.lists(
    st.tuples(st.floats(-3, 3) | st.just(0.0), st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.3, 1.0])),
    min_size=1,
    max_size=60,
)


def batch_of(tokens: list[tuple[float, float]], logp_old: float = -1.0) -> tc.TokenBatch:
    x, advantages = (torch.tensor(c, dtype=DOUBLE)[None] for c in zip(*tokens, strict=True))
    old = torch.full_like(x, logp_old)
    return tc.TokenBatch(old + x, old, advantages, torch.ones_like(x, dtype=torch.bool))


def gradient_of(objective, batch: tc.TokenBatch) -> Tensor:
    """Gradient in the log-probabilities of an objective written in the ratio and advantages."""
    leaf = batch.logp.detach().requires_grad_()
    ratio = (leaf - batch.logp_old).exp()
    return torch.autograd.grad(objective(ratio, batch.advantages).sum(), leaf)[0]


def away_from(batch: tc.TokenBatch, low: float, high: float) -> Tensor:
    """Tokens where the objectives are differentiable: not on a bound."""
    ratio = batch.log_ratio.exp()
    return ((ratio - low).abs() > 1e-9) & ((ratio - high).abs() > 1e-9)


# Theorem 4.1: the general operator and the ratio clip have one gradient ------------------------


@given(tokens=TOKENS, low=st.floats(1e-3, 0.999), high=st.floats(1e-3, 5))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_three_forms_of_a_clip_have_one_gradient(
    tokens: list[tuple[float, float]], low: float, high: float
) -> None:
    batch = batch_of(tokens)
    lower, upper = 1 - low, 1 + high

    def ratio_clip(w: Tensor, a: Tensor) -> Tensor:
        return torch.min(w * a, w.clamp(lower, upper) * a)

    def general(w: Tensor, a: Tensor) -> Tensor:
        satisfied = (lower <= w) & (w <= upper)
        return torch.min(w * a, torch.where(satisfied, w, 1.0) * a)

    ours = tc.coefficient(tc.method("clip_higher", low=low, high=high), batch)
    smooth = away_from(batch, lower, upper)
    for form in (ratio_clip, general):
        torch.testing.assert_close(
            gradient_of(form, batch)[smooth], ours[smooth], rtol=1e-13, atol=0
        )


# Theorem 4.2: a threshold on k3 is an asymmetric ratio interval --------------------------------


@given(delta=st.floats(1e-6, 20), x=st.floats(-25, 5))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_k3_within_the_threshold_is_the_ratio_within_the_interval(delta: float, x: float) -> None:
    low, high = intervals.k3(delta)
    divergence = oracle.k3(x)
    if abs(divergence - delta) > 1e-9 * delta:
        assert (divergence <= delta) == (low <= math.exp(x) <= high)


@given(delta=st.floats(math.log(1e-6), math.log(20)).map(math.exp))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_interval_reaches_further_up_than_down(delta: float) -> None:
    low, high = intervals.k3(delta)
    assert 0 < low < 1 < high
    assert 1 - low < high - 1


@pytest.mark.parametrize("delta", [0.001, 0.01, 0.05, 0.07, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("side", ["outward", "strict"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_atr_is_clip_higher_with_its_own_bounds(delta: float, side: str, level: str) -> None:
    low, high = intervals.k3(delta)
    twin = tc.method("clip_higher", low=1 - low, high=high - 1, side=side, level=level)
    method = tc.method("atr", delta=delta, side=side, level=level)
    torch.manual_seed(0)
    old = -torch.rand(64, 32, dtype=DOUBLE).exponential_()
    advantages = torch.randn(64, 1, dtype=DOUBLE).expand(64, 32)
    mask = torch.rand(64, 32) < 0.8
    spread = math.sqrt(2 * delta) * (8 if level == "sequence" else 1.5)
    batch = tc.TokenBatch(old + spread * torch.randn(64, 32, dtype=DOUBLE), old, advantages, mask)
    assert torch.equal(tc.coefficient(method, batch), tc.coefficient(twin, batch))
    share = method.surrogate(batch).kept[mask].double().mean()
    assert 0.05 < share < 0.98, "the gate never closes, or always: the comparison is empty"


# Directions ------------------------------------------------------------------------------------


@given(weights=st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=2, max_size=9))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_estimators_are_unbiased_for_any_two_policies(
    weights: list[tuple[float, float]],
) -> None:
    old, new = (torch.tensor(c, dtype=DOUBLE) for c in zip(*weights, strict=True))
    old, new = old / old.sum(), new / new.sum()
    x = new.log() - old.log()
    exact = divergences.categorical_kl
    assert (old * divergences.k3(x)).sum().item() == pytest.approx(
        exact(old.log(), new.log()).item(), abs=1e-12
    )
    assert (old * divergences.is_k3(x)).sum().item() == pytest.approx(
        exact(new.log(), old.log()).item(), abs=1e-12
    )
    assert (old * divergences.k2(x)).sum() >= 0
