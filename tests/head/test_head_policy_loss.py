"""A method's loss from hidden states, against the same from whole logits."""

import dataclasses
from typing import Any

import pytest
import torch
from method_cases import ALL, batch_for, label
from test_head import dense
from test_head_foreseen import again as again
from torch import Tensor

import trustclip as tc
from trustclip import head
from trustclip.constraints.base import of_own_token
from trustclip.head import Head, product

BATCH, TIME, WIDTH, VOCABULARY = 4, 6, 5, 700
LENGTHS = torch.tensor([6, 3, 0, 5])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(product._ROWS, "cpu", 5)
    monkeypatch.setitem(product.TILE_LOGITS, "cpu", 256)


def problem(method, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor, tc.TokenBatch]:
    """Hidden states, weight, tokens, and the batch, whose ``logp`` is not the current policy's."""
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(BATCH, TIME, WIDTH, generator=g, dtype=torch.float64).to(dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=g, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, VOCABULARY, (BATCH, TIME), generator=g)
    logp = dense(hidden.flatten(0, 1), weight, ids.flatten())[0].view(BATCH, TIME)
    old = logp - 0.4 * torch.randn(BATCH, TIME, generator=g, dtype=torch.float64).to(dtype)
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0], dtype=dtype)[:, None].expand(BATCH, TIME)
    mask = torch.arange(TIME) < LENGTHS[:, None]
    batch = batch_for(method, logp, old, advantages, mask)
    if method.statistics_over == "generation":
        batch = dataclasses.replace(batch, statistics=method.statistics(batch))
    batch = dataclasses.replace(batch, logp=old)
    return hidden.requires_grad_(), weight.requires_grad_(), ids, batch


def plain(method, hidden, weight, ids, batch, **options) -> Any:
    logp, entropy = dense(hidden.flatten(0, 1), weight, ids.flatten())
    grid = {"logp": logp.view(BATCH, TIME)}
    if "entropy" in method.requires:
        grid["entropy"] = entropy.view(BATCH, TIME).detach()
    return tc.policy_loss(method, dataclasses.replace(batch, **grid), **options)


def gradients(value: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves)


OPTIONS = [
    {"aggregation": "token_mean"},
    {"aggregation": "sequence_mean"},
    {"aggregation": "dr_grpo", "max_length": 9},
    {"aggregation": "dapo", "total_tokens": 31},
]


def without_pull(method: tc.Method) -> bool:
    return tc.Trait.NEEDS_KL_GRADIENT not in method.traits


@pytest.mark.parametrize("method", [m for m in ALL if without_pull(m)], ids=label)
def test_loss_and_gradients_of_every_method(method, again):
    hidden, weight, ids, batch = problem(method)
    want = plain(method, hidden, weight, ids, batch)
    got = tc.head.policy_loss(method, hidden, weight, ids, batch)
    torch.testing.assert_close(got.value, want.value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.per_token, want.per_token, rtol=1e-10, atol=1e-12)
    assert got.metrics.keys() >= want.metrics.keys()
    made = gradients(got.value, hidden, weight)
    for x, y in zip(made, gradients(want.value, hidden, weight), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    known = of_own_token(method) and tc.Trait.MOVES_CANDIDATES not in method.traits
    assert len(again) == (0 if known else 1), "3 products where the trait says so"


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o["aggregation"])
@pytest.mark.parametrize("name", ["atr", "gspo"])
def test_every_aggregation(options, name, again):
    method = tc.method(name)
    hidden, weight, ids, batch = problem(method)
    want = plain(method, hidden, weight, ids, batch, **options)
    got = tc.head.policy_loss(method, hidden, weight, ids, batch, **options)
    # Accumulation and loss scaling multiply all gradients: they are no reason to make any again.
    made = gradients(got.value * 1024 / 3, hidden, weight)
    for x, y in zip(made, gradients(want.value * 1024 / 3, hidden, weight), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    assert len(again) == (name == "gspo")


def test_another_loss_of_the_same_log_probabilities_is_right_too(again):
    method = tc.method("atr")
    hidden, weight, ids, batch = problem(method)
    got = tc.head.policy_loss(method, hidden, weight, ids, batch)
    want = plain(method, hidden, weight, ids, batch)
    logp = dense(hidden.flatten(0, 1), weight, ids.flatten())[0].view(BATCH, TIME)
    made = gradients(got.value + got.logp.square().mean(), hidden, weight)
    wanted = gradients(want.value + (logp * batch.mask).square().mean(), hidden, weight)
    for x, y in zip(made, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    assert again == [[False, True, False]]


def test_packed_sequences_are_the_padded_ones(again):
    method = tc.method("atr")
    hidden, weight, ids, batch = problem(method)
    options: dict[str, Any] = {"aggregation": "sequence_mean", "entropy": True}
    want = tc.head.policy_loss(method, hidden, weight, ids, batch, **options)
    mask = batch.mask
    old = batch.logp_old[mask]
    packed = tc.TokenBatch.packed(old, old, batch.advantages[:, 0], lengths=LENGTHS)
    got = tc.head.policy_loss(method, hidden[mask], weight, ids[mask], packed, **options)
    assert got.entropy is not None and want.entropy is not None
    torch.testing.assert_close(got.value, want.value)
    torch.testing.assert_close(got.entropy, want.entropy)
    made = gradients(got.value, hidden, weight)
    for x, y in zip(made, gradients(want.value, hidden, weight), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    assert again == []


@pytest.mark.parametrize("order", ["old_new", "new_old"])
@pytest.mark.parametrize("moved_head", [False, True])
def test_an_exact_kl_divergence_is_computed_where_it_is_needed(order, moved_head, again):
    method = tc.method("full_kl", order=order, delta=0.02)
    hidden, weight, ids, batch = problem(method)
    batch = dataclasses.replace(batch, kl_old_new=None, kl_new_old=None)
    g = torch.Generator().manual_seed(4)
    old = hidden.detach() + 0.1 * torch.randn(hidden.shape, generator=g, dtype=torch.float64)
    weight_old = weight.detach() * 1.05 if moved_head else None
    with pytest.raises(ValueError, match="give `hidden_old`"):
        tc.head.policy_loss(method, hidden, weight, ids, batch)
    got = tc.head.policy_loss(
        method, hidden, weight, ids, batch, hidden_old=old, weight_old=weight_old
    )
    p = (hidden.detach() @ weight.detach().T).log_softmax(-1)
    q = (old @ (weight.detach() if weight_old is None else weight_old).T).log_softmax(-1)
    a, b = (q, p) if order == "old_new" else (p, q)
    kl = (a.exp() * (a - b)).sum(-1)
    want = plain(method, hidden, weight, ids, dataclasses.replace(batch, **{f"kl_{order}": kl}))
    assert int((got.per_token != 0).sum()) > 0
    torch.testing.assert_close(got.per_token, want.per_token, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        gradients(got.value, weight), gradients(want.value, weight), rtol=1e-9, atol=1e-12
    )
    assert again == []


def test_a_head_with_a_bias_and_a_temperature(again):
    method = tc.method("atr", delta=0.2)
    hidden, weight, ids, batch = problem(method)
    g = torch.Generator().manual_seed(5)
    bias = torch.randn(VOCABULARY, generator=g, dtype=torch.float64).requires_grad_()
    got = tc.head.policy_loss(method, hidden, Head(weight, bias, 0.8), ids, batch)
    logp = dense(hidden.flatten(0, 1), weight, ids.flatten(), bias, 0.8)[0].view(BATCH, TIME)
    want = tc.policy_loss(method, dataclasses.replace(batch, logp=logp))
    leaves = hidden, weight, bias
    made = gradients(got.value, *leaves)
    for x, y in zip(made, gradients(want.value, *leaves), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)
    assert again == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aggregaton": "dapo"}, "did you mean 'aggregation'"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"ids": torch.zeros(4, 5).long()}, r"`ids` must be \[4, 6\], got shape \(4, 5\)"),
        ({"hidden": torch.zeros(24, 5).double()}, r"`hidden` must be \[4, 6, H\]"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_bad_input(change, message):
    method = tc.method("atr")
    hidden, weight, ids, batch = problem(method)
    given = {"hidden": hidden, "weight": weight, "ids": ids, "batch": batch} | change
    with pytest.raises(ValueError, match=message):
        tc.head.policy_loss(method, **given)


def test_a_kl_divergence_without_a_graph_pulls_nothing():
    method = tc.method("ppo_penalty", estimator="exact")
    hidden, weight, ids, batch = problem(method)
    batch = dataclasses.replace(batch, kl_old_new=None)
    with pytest.raises(ValueError, match="pulls along the gradient of `kl_old_new`"):
        tc.head.policy_loss(method, hidden, weight, ids, batch, hidden_old=hidden.detach())


def test_a_sampled_token_that_no_policy_can_sample_is_not_finite() -> None:
    """A bias of -inf is one of -1e30 in the tiles; its token must not pass for an unlikely one."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 4, generator=generator) for n in (3, 5))
    leaf, bias = weight.requires_grad_(), torch.zeros(5).index_fill(0, torch.tensor(2), -torch.inf)
    ids, old = torch.tensor([[1, 2, 3]]), torch.full((1, 3), -1.5)
    logp = head.score(hidden, leaf, ids[0], bias=bias).logp
    assert logp.isfinite().tolist() == [True, False, True] and logp[1] == -torch.inf
    batch = tc.TokenBatch(old, old, torch.ones(1, 3), torch.ones(1, 3) > 0)
    loss = head.policy_loss("atr", hidden[None], Head(leaf, bias), ids, batch)
    loss.value.backward()
    assert loss.metrics["nonfinite"][0] == 1 and leaf.grad is not None and leaf.grad.isnan().any()
    assert torch.allclose(head.score(hidden[:1], leaf, ids[0, :1], bias=bias).logp, logp[:1])
