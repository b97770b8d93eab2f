"""KL divergences from hidden states against two dense softmaxes."""

import pytest
import torch

from trustclip.head import Order, bregman_kl, exact_kl, score, topk
from trustclip.head.softmax import Running, fold


def dense(new, old, w_new, w_old, order, temperature):
    p = (new.double() @ w_new.double().T / temperature).log_softmax(-1)
    q = (old.double() @ w_old.double().T / temperature).log_softmax(-1)
    a, b = (q, p) if order == "old_new" else (p, q)
    return (a.exp() * (a - b)).sum(-1)


def test_is_never_negative_and_small_where_policies_are_close():
    g = torch.Generator().manual_seed(1)
    new, w = torch.randn(64, 16, generator=g), torch.randn(2000, 16, generator=g)
    old = new + 1e-4 * torch.randn(64, 16, generator=g)
    kl = exact_kl(new, old, w)
    assert (kl >= 0).all()
    want = dense(new, old, w, w, "old_new", 1.0)
    assert (kl.double() - want).abs().max() < 2e-8


def policies(tokens=9, vocabulary=700, width=6, dtype=torch.float64, moved=0.2):
    g = torch.Generator().manual_seed(3)
    new = torch.randn(tokens, width, generator=g, dtype=dtype)
    old = new + moved * torch.randn(tokens, width, generator=g, dtype=dtype)
    return new, old, torch.randn(vocabulary, width, generator=g, dtype=dtype)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tokens_that_a_bias_of_minus_infinity_excludes_are_not_there(dtype, temperature):
    new, old, w = (x.to(dtype) for x in policies())
    bias = torch.zeros(len(w), dtype=dtype)
    bias[::3] = -torch.inf
    got = exact_kl(new, old, w, bias=bias, temperature=temperature)
    want = exact_kl(new, old, w[bias == 0], temperature=temperature)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    hidden = new.clone()
    hidden[0, 0] = torch.nan
    assert exact_kl(hidden, old, w, bias=bias)[0].isnan()


def test_nothing_and_nonsense():
    w = torch.randn(10, 4)
    assert exact_kl(torch.zeros(0, 4), torch.zeros(0, 4), w).shape == (0,)
    with pytest.raises(ValueError, match="order"):
        exact_kl(torch.zeros(1, 4), torch.zeros(1, 4), w, order="forward")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one shape"):
        exact_kl(torch.zeros(1, 4), torch.zeros(2, 4), w)
    with pytest.raises(ValueError, match="hidden states must be"):
        exact_kl(torch.zeros(1, 5), torch.zeros(1, 5), w)


def test_a_token_that_only_the_other_policy_can_draw():
    """e^d overflows and underflows in turn: float32 against float64, both orders."""
    new, old = torch.tensor([[200.0, 0.0, -3.0]]), torch.tensor([[0.0, 90.0, -3.0]])
    eye = torch.eye(3)
    wanted: dict[Order, float] = {"old_new": 290.0 - 90.0, "new_old": 290.0 - 200.0}
    for order, want in wanted.items():
        got = exact_kl(new, old, eye, order=order)
        assert got.item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("order", ["old_new", "new_old"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_bregman_divergence_of_the_log_partition_is_the_exact_kl(order, temperature):
    new, old, w = policies()
    bias = torch.linspace(-1, 1, len(w), dtype=w.dtype)
    ids = torch.arange(len(new))
    options = {"bias": bias, "temperature": temperature}
    scores = [score(h, w, ids, mean=True, **options) for h in (new, old)]
    got = bregman_kl(new, scores[0], old, scores[1], order, temperature=temperature)
    want = exact_kl(new, old, w, order=order, **options)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_bregman_needs_the_mean_of_the_first_policy_and_skips_what_both_skip():
    new, old, w = policies(tokens=3)
    ids = torch.tensor([1, -100, 2])
    with_mean, without = score(new, w, ids, mean=True), score(old, w, ids)
    kl = bregman_kl(new, with_mean, old, without, "new_old")
    assert kl[1] == 0 and (kl[[0, 2]] > 0).all()
    with pytest.raises(ValueError, match="mean of the old policy"):
        bregman_kl(new, with_mean, old, without, "old_new")
    with pytest.raises(ValueError, match="order"):
        bregman_kl(new, with_mean, old, without, "reverse")  # type: ignore[arg-type]


def test_bregman_costs_no_product_where_the_gradient_of_a_frozen_head_is_made():
    new, _, w = policies()
    scores = score(new.requires_grad_(), w, torch.zeros(len(new)).long(), mean=True)
    scores.logp.sum().backward()
    want = (new.detach() @ w.T).softmax(-1) @ w
    assert scores.mean is not None and not scores.mean.requires_grad
    torch.testing.assert_close(scores.mean, want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(new.grad, w[0] - scores.mean, rtol=1e-9, atol=1e-12)


def test_top_k_out_of_range_and_of_nothing():
    w = torch.randn(10, 4)
    for k in (0, 10):
        with pytest.raises(ValueError, match="from 1 to 9"):
            topk(torch.zeros(1, 4), w, k)
    ids, logp = topk(torch.zeros(0, 4), w, 3)
    assert ids.shape == logp.shape == (0, 3)


def test_half_precision_weights_add_up_to_one():
    """What a GPU makes of the mean: rounded weights over their own sum, not over the exact one."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(5000, 32, generator=g, dtype=torch.float64) * 0.5
    weight[:, 0] = 1  # a direction that shifts all logits together
    hidden = torch.randn(64, 32, generator=g, dtype=torch.float64)
    moved = hidden + 0.01 * torch.randn(64, 32, generator=g, dtype=torch.float64)
    moved[:, 0] += 5
    running = Running.start(torch.empty(64, dtype=torch.float64), entropy=False)
    running = running.of_tokens(rounded=True)
    rounded = torch.empty(64, 5000, dtype=torch.bfloat16)
    fold(hidden @ weight.T, running, rounded, torch.empty(64, dtype=torch.float64))
    after = (moved @ weight.T).logsumexp(1)
    want = exact_kl(moved, hidden, weight)

    def error(mass):
        mean = rounded.double() @ weight / mass[:, None]
        kl = after - running.log_partition - (mean * (moved - hidden)).sum(1)
        return (kl - want).abs().max()

    assert error(running.mass) < 5e-5 < 1e-3 < error(running.sum), (
        error(running.mass),
        error(running.sum),
    )
