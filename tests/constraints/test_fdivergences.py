"""f-divergences: textbook sums, bounds by other means, and the method."""

import functools
import math
import typing
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.fdivergences import NAMED

DOUBLE = torch.float64
every_divergence = pytest.mark.parametrize("name", NAMED)


def policies(seed: int, tokens: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, tokens, dtype=DOUBLE, generator=generator)
    return logits[0].log_softmax(-1), logits[1].log_softmax(-1)


# The exact divergence --------------------------------------------------------------------------


def kl(a: list[float], b: list[float]) -> float:
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


def jensen_shannon(a: list[float], b: list[float]) -> float:
    middle = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return (kl(a, middle) + kl(b, middle)) / 2


def renyi_sum(a: list[float], b: list[float], alpha: float) -> float:
    return math.fsum(y**alpha * x ** (1 - alpha) for x, y in zip(a, b, strict=True))


TEXTBOOK: dict[str, Callable[[list[float], list[float]], float]] = {
    "kl_old_new": kl,
    "kl_new_old": lambda old, new: kl(new, old),
    "chi2": lambda old, new: renyi_sum(old, new, 2) - 1,
    "hellinger": lambda old, new: 2 - 2 * renyi_sum(old, new, 0.5),
    "js": jensen_shannon,
}


def mean_of_tokens(name: str, old: Tensor, new: Tensor) -> Tensor:
    return (old.exp() * NAMED[name].token(new - old)).sum()


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_tokens_is_the_textbook_sum(name: str, seed: int) -> None:
    old, new = policies(seed)
    want = TEXTBOOK[name](old.exp().tolist(), new.exp().tolist())
    assert mean_of_tokens(name, old, new).item() == pytest.approx(want, rel=1e-12)


@every_divergence
def test_the_bernoulli_form_is_never_above_the_exact_one(name: str) -> None:
    for seed in range(20):
        old, new = policies(seed)
        exact = mean_of_tokens(name, old, new)
        assert (NAMED[name].bernoulli(old, new) <= exact * (1 + 1e-12)).all()


@every_divergence
def test_a_token_is_never_negative_and_nothing_at_ratio_one(name: str) -> None:
    divergence = NAMED[name]
    x = torch.linspace(-60, 30, 1001, dtype=DOUBLE)
    values = divergence.token(x)
    assert (values >= 0).all()
    assert divergence.token(torch.zeros(1, dtype=DOUBLE)).item() == 0
    assert (values[x < 0].diff() <= 1e-15).all(), "f falls towards ratio 1 from below"
    assert (values[x > 0].diff() >= 0).all()
    tiny = torch.tensor([1e-6, -1e-6], dtype=DOUBLE)
    curvature = {"chi2": 2.0, "hellinger": 0.5, "js": 0.25}.get(name, 1.0)
    want = torch.full_like(tiny, curvature / 2 * 1e-12)
    torch.testing.assert_close(divergence.token(tiny), want, rtol=1e-4, atol=0)


# Bounds ----------------------------------------------------------------------------------------


def exact_generator(name: str) -> Callable[[Decimal], Decimal]:
    """f of the ratio, in the precision of the context."""
    return {
        "kl_old_new": lambda w: w - 1 - w.ln(),
        "kl_new_old": lambda w: 1 - w + w * w.ln(),
        "chi2": lambda w: (w - 1) ** 2,
        "hellinger": lambda w: (w.sqrt() - 1) ** 2,
        "js": lambda w: (w * w.ln() - (1 + w) * ((1 + w) / 2).ln()) / 2,
    }[name]


@every_divergence
def test_bounds_keep_twelve_digits_from_tiny_thresholds_to_huge_ones(name: str) -> None:
    """Moved by 1e-12 of itself, a bound is inside on one side and outside on the other."""
    f = exact_generator(name)
    logp = torch.tensor([[1e-6], [0.3], [0.99]], dtype=DOUBLE).log()
    with localcontext(prec=50):

        def bernoulli(logp: Decimal, x: Decimal) -> Decimal:
            p, w = logp.exp(), x.exp()
            if p * w >= 1:
                return Decimal("inf")
            return p * f(w) + (1 - p) * f((1 - p * w) / (1 - p))

        deltas = (1e-14, 3e-11, 1e-8, 1e-3, 0.07, 0.9, 20.0, 700.0)
        each: typing.Any = torch.tensor(deltas, dtype=DOUBLE)  # one bisection for all
        ends = NAMED[name].log_bernoulli_interval(logp.expand(3, len(deltas)), each)
        for delta, found in zip(deltas, torch.stack(ends, dim=2).unbind(1), strict=True):
            cases = [(lambda x: f(x.exp()), x) for x in NAMED[name].log_interval(delta)]
            for (old,), row in zip(logp.tolist(), found.tolist(), strict=True):
                reachable = [x for x in row if -700 < x < -old]
                exact = functools.partial(bernoulli, Decimal(old))
                cases += [(exact, x) for x in reachable]
            for divergence, x in cases:
                if math.isinf(x):
                    continue
                e = Decimal(x) * Decimal("1e-12")
                assert divergence(Decimal(x) - e) <= delta <= divergence(Decimal(x) + e), (delta, x)


@every_divergence
def test_bernoulli_bounds_widen_as_the_token_gets_rarer(name: str) -> None:
    logp = torch.tensor([1e-4, 1e-2, 0.1, 0.3, 0.5], dtype=DOUBLE).log()
    low, high = NAMED[name].log_bernoulli_interval(logp, 0.03)
    assert (low.exp().diff() >= 0).all() and (high.diff() < 0).all()


# The method ------------------------------------------------------------------------------------


@every_divergence
def test_the_gate_of_the_bernoulli_form_closes_at_its_bounds(name: str) -> None:
    method = tc.method("f_divergence", divergence=name, bounds="bernoulli", side="strict")
    p = torch.rand(400, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)) ** 3
    x = torch.linspace(-2, 2, 400, dtype=DOUBLE)[:, None].clamp(max=-p.log() - 1e-9)
    low, high = (b.log() for b in tc.interval(method, p_old=p))  # type: ignore[union-attr]
    ones = torch.ones_like(x)
    batch = tc.TokenBatch(p.log() + x, p.log(), ones, ones.bool())
    want = (low <= x) & (x <= high)
    assert torch.equal(method.surrogate(batch).kept, want)
    assert 0.1 < want.double().mean() < 0.95
