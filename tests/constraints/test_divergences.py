"""Divergences: values, signs near zero, expectations and symmetric facts."""

import decimal
import math

import oracle
import pytest
import reference_values as known
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip.constraints import divergences as d

DOUBLE = torch.float64


def k3_inverted(x: torch.Tensor) -> torch.Tensor:
    """k3 of the inverse ratio: 1/w - 1 + log w."""
    return d.k3(-x)


def of(function, x: float) -> float:
    return function(torch.tensor(x, dtype=DOUBLE)).item()


@pytest.mark.parametrize("row", known.POINTWISE, ids=lambda row: f"w={row[0]}")
def test_known_values(row: tuple[float, ...]) -> None:
    w, *want = row
    functions = (d.k2, d.k3, d.is_k3, d.k3_product, k3_inverted)
    for function, value in zip(functions, want, strict=True):
        assert of(function, math.log(w)) == pytest.approx(value, rel=1e-10), function.__name__


@pytest.mark.parametrize("x", [1e-9, -1e-7, 1e-4, -0.3, 0.999, 1.0, -5.0, 30.0])
def test_k3_keeps_every_digit(x: float) -> None:
    with decimal.localcontext(prec=60):
        want = float(decimal.Decimal(x).exp() - 1 - decimal.Decimal(x))
    assert of(d.k3, x) == pytest.approx(want, rel=1e-15)
    assert of(d.k3_product, x) == pytest.approx(math.exp(x) * want, rel=1e-14)


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 1e-2, 0.3])
def test_never_negative_in_single_precision(scale: float) -> None:
    torch.manual_seed(0)
    x = scale * torch.randn(100_000)
    for function in (d.k2, d.k3, d.k3_product, k3_inverted, d.tv, d.chi2, d.hellinger):
        assert (function(x) >= 0).all(), function.__name__
    naive = x.exp() - 1 - x
    assert scale > 0.1 or (naive < 0).any(), "the test would pass with a cancelling formula too"


@pytest.mark.parametrize("x", [-1000.0, -80.0, 80.0])
def test_finite_for_any_log_ratio(x: float) -> None:
    for function in (d.k1, d.k2, d.k3, d.is_k3, d.tv, d.hellinger):
        leaf = torch.tensor(x, requires_grad=True)
        value = function(leaf)
        value.backward()
        assert value.isfinite(), function.__name__
        assert leaf.grad is not None
        assert leaf.grad.isfinite(), function.__name__


def test_expectations_under_the_old_policy() -> None:
    old = torch.tensor(known.PI_OLD, dtype=DOUBLE)
    x = torch.tensor(known.PI_NEW, dtype=DOUBLE).log() - old.log()

    def expected(function) -> float:
        return (old * function(x)).sum().item()

    want = known.EXPECTATIONS
    for function, value in (
        (d.k1, want["kl_old_new"]),
        (d.k3, want["kl_old_new"]),
        (d.is_k3, want["kl_new_old"]),
        (d.k3_product, want["chi2_minus_kl"]),
        (k3_inverted, want["k3_inverted"]),
        (d.k2, want["k2"]),
        (d.tv, want["tv"]),
        (d.chi2, want["chi2"]),
    ):
        assert expected(function) == pytest.approx(value, rel=1e-12), function.__name__


def test_exact_kl_over_the_vocabulary() -> None:
    old = torch.tensor(known.PI_OLD, dtype=DOUBLE).log()
    new = torch.tensor(known.PI_NEW, dtype=DOUBLE).log()
    both = torch.stack([old, new])[:, None, :]
    got = d.categorical_kl(both, both.flip(0))
    assert got.shape == (2, 1)
    want = [known.EXPECTATIONS["kl_old_new"], known.EXPECTATIONS["kl_new_old"]]
    assert got[:, 0].tolist() == pytest.approx(want, rel=1e-12)
    assert d.categorical_kl(old, old).item() == 0.0


def test_exact_kl_with_a_token_that_cannot_be_sampled() -> None:
    old = torch.tensor([math.log(0.5), math.log(0.5), -math.inf], dtype=DOUBLE)
    new = torch.tensor([0.25, 0.5, 0.25], dtype=DOUBLE).log()
    assert d.categorical_kl(old, new).item() == pytest.approx(0.5 * math.log(2), rel=1e-12)


@given(p=st.floats(0.01, 0.99), q=st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_binary_divergences(p: float, q: float) -> None:
    old, new = torch.tensor([math.log(p), math.log(q)], dtype=DOUBLE)
    kl = d.binary_kl_old_new(old, new).item()
    assert kl == pytest.approx(oracle.bernoulli_kl(p, q), rel=1e-8, abs=1e-13)
    # The complement event has the same divergence.
    complement = torch.tensor([math.log1p(-p), math.log1p(-q)], dtype=DOUBLE)
    assert d.binary_kl_old_new(*complement).item() == pytest.approx(kl, rel=1e-8, abs=1e-13)
    assert d.binary_tv(old, new).item() == pytest.approx(abs(p - q), rel=1e-9, abs=1e-15)
    assert kl >= 2 * (p - q) ** 2 - 1e-12  # Pinsker


@pytest.mark.parametrize("logp", [-1e-7, -1e-3, -20.0, -80.0, 0.0])
def test_binary_kl_is_zero_on_policy_and_finite(logp: float) -> None:
    for dtype in (torch.float32, DOUBLE):
        old = torch.tensor(logp, dtype=dtype)
        new = old.clone().requires_grad_()
        for function in (d.binary_kl_old_new, d.binary_tv):
            value = function(old, new)
            value.backward()
            assert value.item() == pytest.approx(0.0, abs=1e-6)
            assert new.grad is not None
            assert new.grad.isfinite()
