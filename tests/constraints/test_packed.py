"""Packed sequences against the padded batch they came from: every method, level, aggregation."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import batch_for, every_method, random_batch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.aggregation import aggregate

#: Those of `method_cases.random_batch`.
LENGTHS = torch.tensor([11, 11, 7, 9, 11, 4, 1, 0])

AGGREGATIONS: dict[str, dict[str, Any]] = {
    "token_mean": {},
    "sequence_mean": {},
    "dr_grpo": {"max_length": 16},
    "dapo": {"total_tokens": 100},
}


def in_row(batch: tc.TokenBatch, lengths: Tensor) -> dict[str, Tensor]:
    """The fields of a padded batch, its tokens one after another."""
    place = torch.arange(batch.logp.shape[1]) < lengths[:, None]
    held = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    found: dict[str, Any] = {
        name: x.detach()[place] for name, x in held.items() if isinstance(x, Tensor)
    }
    if batch.candidates is not None:
        found["candidates"] = batch.candidates.map(lambda x: x.detach()[place][None])
    return found


def losses(
    method: tc.Method, batch: tc.TokenBatch, lengths: Tensor, by: dict[str, Any]
) -> tuple[tc.Loss, Tensor, tc.Loss, Tensor, tc.TokenBatch]:
    """Loss and gradient of the padded batch, and of the packed one; the gradients are [tokens]."""
    place = torch.arange(batch.logp.shape[1]) < lengths[:, None]
    pulled = tc.Trait.NEEDS_KL_GRADIENT in method.traits
    kl = {"kl_old_new": batch.given("kl_old_new").detach().requires_grad_()} if pulled else {}
    leaf = batch.logp.detach().clone().requires_grad_()
    padded = tc.policy_loss(method, dataclasses.replace(batch, logp=leaf, **kl), **by)
    fields = in_row(batch, lengths)
    if pulled:
        fields["kl_old_new"].requires_grad_()
    row = fields.pop("logp").clone().requires_grad_()
    made = tc.TokenBatch.packed(row, lengths=lengths, **fields)  # type: ignore[arg-type]
    packed = tc.policy_loss(method, made, **by)
    (want,) = torch.autograd.grad(padded.value, leaf)
    (got,) = torch.autograd.grad(packed.value, row)
    return padded, want[place], packed, got, made


@every_method
def test_a_packed_batch_has_the_loss_gradient_and_metrics_of_the_padded_one(
    method: tc.Method,
) -> None:
    batch = random_batch(method)
    padded, want, packed, got, made = losses(method, batch, LENGTHS, {})
    assert torch.equal(got, want) and torch.equal(packed.value, padded.value)
    for name, more in AGGREGATIONS.items():
        one, other = (
            aggregate(name, loss.per_token, of.mask, **more)
            for loss, of in ((padded, batch), (packed, made))
        )
        assert torch.equal(one, other)
    place = torch.arange(batch.logp.shape[1]) < LENGTHS[:, None]
    assert torch.equal(made.pack(packed.per_token), padded.per_token[place])
    assert packed.metrics.keys() == padded.metrics.keys()
    for key, pair in padded.metrics.items():
        assert torch.equal(torch.stack(packed.metrics[key]), torch.stack(pair)), key


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.sampled_from(["token", "prefix", "sequence"]),
    st.sampled_from(list(AGGREGATIONS)),
    st.integers(0, 2**20),
)
def test_levels_and_aggregations_of_any_lengths(
    sizes: list[int], level: str, aggregation: str, seed: int
) -> None:
    torch.manual_seed(seed)
    method = tc.method("atr", delta=0.05, level=level)
    lengths, shape = torch.tensor(sizes), (len(sizes), max(sizes))
    # Wider than the longest: padding that no sequence needs changes nothing.
    shape = (shape[0], shape[1] + seed % 3)
    place = torch.arange(shape[1]) < lengths[:, None]
    mask = place & (torch.rand(shape) < 0.8)
    old = -torch.rand(shape, dtype=torch.float64)
    grid = torch.randn(shape[0], 1, dtype=torch.float64).expand(shape).contiguous()
    batch = batch_for(method, old + 0.4 * torch.randn(shape), old, grid, mask)
    by = {"aggregation": aggregation, **AGGREGATIONS[aggregation]}
    padded, want, packed, got, _ = losses(method, batch, lengths, by)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(packed.value, padded.value, rtol=1e-12, atol=1e-15)


def test_one_number_for_each_sequence_and_the_packed_order() -> None:
    torch.manual_seed(1)
    logp, old = torch.randn(2, 6)
    groups, advantages = torch.tensor([3, 3, 4]), torch.tensor([1.0, -1.0, 2.0])
    lengths = torch.tensor([0, 3, 4, 6], dtype=torch.int32).diff()
    short = tc.TokenBatch.packed(logp, old, advantages, lengths=lengths, groups=groups)
    long = tc.TokenBatch.packed(
        logp,
        old,
        advantages.repeat_interleave(lengths),
        lengths=lengths,
        groups=groups.repeat_interleave(lengths),
    )
    for name in ("logp", "logp_old", "advantages", "mask", "groups"):
        assert torch.equal(getattr(short, name), getattr(long, name)), name
    assert short.logp.shape == (3, 3)
    assert torch.equal(short.pack(short.logp), logp)
    # What is computed from a batch can be packed, too; a batch that was padded cannot.
    assert short.pack(tc.coefficient("atr", short)).shape == (6,)
    plain = tc.TokenBatch(logp[None], old[None], torch.ones(1, 6), torch.ones(1, 6).bool())
    with pytest.raises(ValueError, match=r"was not packed: see TokenBatch\.packed"):
        plain.pack(plain.logp)


def test_a_number_that_is_not_finite_stays_in_its_sequence() -> None:
    logp = torch.tensor([-1.0, -1.0, float("nan"), -1.0], requires_grad=True)
    batch = tc.TokenBatch.packed(
        logp, torch.full((4,), -1.1), torch.ones(4), lengths=torch.tensor([2, 2])
    )
    tc.policy_loss(tc.method("gspo"), batch).per_token.sum().backward()
    assert logp.grad is not None
    assert logp.grad.isnan().tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({}, "lengths"),
        ({"lengths": torch.tensor([2, 3])}, "add up to the number of tokens, 4, got 5 of 2"),
        ({"lengths": torch.tensor([5, -1])}, "0 or more .* the shortest has -1"),
        ({"lengths": torch.tensor([2.0, 2.0])}, "integers with one dimension, got torch.float32"),
        ({"lengths": torch.tensor([[2, 2]])}, r"integers with one dimension, got torch.int64 \["),
        ({"lengths": [2, 2]}, "integers with one dimension, got list"),
        ({"lengths": torch.tensor([2, 2]), "entropy": torch.ones(3)}, r"`entropy` must be \[4\]"),
        (
            {"lengths": torch.tensor([2, 2]), "groups": torch.ones(2)},
            "must be a torch tensor, int64",
        ),
        ({"lengths": torch.tensor([2, 2]), "keys": 3}, r"`keys` must be \[4\], .* got int"),
        ({"lengths": torch.tensor([2, 2]), "tokens": torch.ones(4)}, "tokens"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        tc.TokenBatch.packed(torch.ones(4), torch.ones(4), torch.ones(4), **wrong)


def test_packed_means_one_dimension() -> None:
    with pytest.raises(ValueError, match=r"packed `logp` must be \[tokens\]"):
        tc.TokenBatch.packed(*torch.ones(3, 2, 2), lengths=torch.tensor([2, 2]))


def test_no_sequences_at_all() -> None:
    none = torch.zeros(0)
    batch = tc.TokenBatch.packed(none, none, none, lengths=torch.zeros(0, dtype=torch.int64))
    assert tc.policy_loss("atr", batch).value == 0 and batch.pack(batch.logp).shape == (0,)
