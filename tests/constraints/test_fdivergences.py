"""f-divergences: textbook sums, and bounds by other means."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

from trustclip.methods.f_divergence import MEASURES

DOUBLE = torch.float64
every_divergence = pytest.mark.parametrize("name", MEASURES)


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
    return (old.exp() * MEASURES[name][0](new - old)).sum()


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_tokens_is_the_textbook_sum(name: str, seed: int) -> None:
    old, new = policies(seed)
    want = TEXTBOOK[name](old.exp().tolist(), new.exp().tolist())
    assert mean_of_tokens(name, old, new).item() == pytest.approx(want, rel=1e-12)


@every_divergence
def test_a_token_is_never_negative_and_nothing_at_ratio_one(name: str) -> None:
    token, _ = MEASURES[name]
    x = torch.linspace(-60, 30, 1001, dtype=DOUBLE)
    values = token(x)
    assert (values >= 0).all()
    assert token(torch.zeros(1, dtype=DOUBLE)).item() == 0
    assert (values[x < 0].diff() <= 1e-15).all(), "f falls towards ratio 1 from below"
    assert (values[x > 0].diff() >= 0).all()
    tiny = torch.tensor([1e-6, -1e-6], dtype=DOUBLE)
    curvature = {"chi2": 2.0, "hellinger": 0.5, "js": 0.25}.get(name, 1.0)
    want = torch.full_like(tiny, curvature / 2 * 1e-12)
    torch.testing.assert_close(token(tiny), want, rtol=1e-4, atol=0)


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
    f, (_, bounds_of) = exact_generator(name), MEASURES[name]
    with localcontext(prec=50):
        for delta in (1e-14, 3e-11, 1e-8, 1e-3, 0.07, 0.9, 1.0, 2.0, 20.0, 700.0):
            low, high = bounds_of(delta)
            assert low < 0 < high < math.inf
            for x in (low, high):
                if math.isfinite(x):
                    e = Decimal(x) * Decimal("1e-12")
                    within = [f((Decimal(x) + by).exp()) for by in (-e, e)]
                    assert within[0] <= delta <= within[1], (delta, x)
                else:  # no ratio is too small
                    assert f(Decimal("1e-40")) <= delta, delta
