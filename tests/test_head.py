"""Exact KL from hidden states against two dense softmaxes."""

import pytest
import torch

from trustclip.head import exact, exact_kl


def dense(new, old, w_new, w_old, order, temperature):
    p = (new.double() @ w_new.double().T / temperature).log_softmax(-1)
    q = (old.double() @ w_old.double().T / temperature).log_softmax(-1)
    a, b = (q, p) if order == "old_new" else (p, q)
    return (a.exp() * (a - b)).sum(-1)


@pytest.mark.parametrize("order", ["old_new", "new_old"])
@pytest.mark.parametrize("trained_head", [False, True])
def test_equals_the_dense_formula(order, trained_head, monkeypatch):
    monkeypatch.setattr(exact, "_CHUNK_LOGITS", 64)  # chunks of one row, and a last one
    g = torch.Generator().manual_seed(0)
    new, w = torch.randn(7, 5, generator=g), torch.randn(50, 5, generator=g)
    old = new + 0.2 * torch.randn(7, 5, generator=g)
    w_old = w + 0.1 * torch.randn(50, 5, generator=g) if trained_head else None
    got = exact_kl(new, old, w, w_old, order, temperature=0.7)
    want = dense(new, old, w, w if w_old is None else w_old, order, 0.7)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-7)


def test_is_never_negative_and_small_where_policies_are_close():
    g = torch.Generator().manual_seed(1)
    new, w = torch.randn(64, 16, generator=g), torch.randn(2000, 16, generator=g)
    old = new + 1e-4 * torch.randn(64, 16, generator=g)
    kl = exact_kl(new, old, w)
    assert (kl >= 0).all()
    want = dense(new, old, w, w, "old_new", 1.0)
    assert (kl.double() - want).abs().max() < 2e-8


def test_a_policy_that_gave_a_token_up_costs_what_it_should():
    eye = torch.eye(3, dtype=torch.float64)
    old = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    new = torch.tensor([[60.0, 0.0, -60.0]], dtype=torch.float64)
    for order in ("old_new", "new_old"):
        want = dense(new, old, eye, eye, order, 1.0)
        torch.testing.assert_close(exact_kl(new, old, eye, order=order), want, rtol=1e-9, atol=0)


def test_nothing_and_nonsense():
    w = torch.randn(10, 4)
    assert exact_kl(torch.zeros(0, 4), torch.zeros(0, 4), w).shape == (0,)
    with pytest.raises(ValueError, match="order"):
        exact_kl(torch.zeros(1, 4), torch.zeros(1, 4), w, order="forward")  # type: ignore[arg-type]


def test_bfloat16_head_is_computed_in_float32():
    g = torch.Generator().manual_seed(2)
    new, w = torch.randn(5, 8, generator=g).bfloat16(), torch.randn(30, 8, generator=g).bfloat16()
    old = new + 0.1
    got = exact_kl(new, old, w)
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), dense(new, old, w, w, "old_new", 1.0), rtol=1e-4, atol=1e-6
    )
