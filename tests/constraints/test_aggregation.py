"""Advantages, aggregation, the scalar loss, and what a batch refuses."""

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import batch_for

import trustclip as tc
from trustclip.constraints.aggregation import aggregate

DOUBLE = torch.float64
VALUES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, -6.0, 99.0, 99.0], [5.0, 99.0, 99.0, 99.0]])
MASK = VALUES != 99.0


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
@pytest.mark.parametrize("name", tc.methods())
def test_a_batch_of_nothing_has_a_loss_of_zero(name: str, shape: tuple[int, int]) -> None:
    method = tc.method(name)
    x, mask = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    batch = batch_for(method, x, x, x, mask)
    for name, more in USED.items():
        assert tc.policy_loss(method, batch, name, **more).value.item() == 0


#: Aggregations with the number that each reads.
USED: dict[str, Any] = {
    "token_mean": {},
    "sequence_mean": {},
    "dr_grpo": {"max_length": 8},
    "dapo": {"total_tokens": 0},
}


@pytest.mark.parametrize("total", [None, 0, torch.tensor(0)])
def test_dapo_of_an_update_without_a_token_is_0(total: Any) -> None:
    """As in TRL: no NaN that would reach the weights."""
    leaf, mask = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    batch = tc.TokenBatch(leaf, leaf, torch.ones(2, 3), mask)
    loss = tc.policy_loss("atr", batch, "dapo", total_tokens=total)
    loss.value.backward()
    assert loss.value.item() == 0 and leaf.grad is not None and not leaf.grad.any()


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize(("number", "rule"), [("max_length", "dr_grpo"), ("total_tokens", "dapo")])
def test_a_number_that_an_aggregation_does_not_read_is_refused(
    name: str, number: str, rule: str
) -> None:
    if name == rule:
        return
    with pytest.raises(ValueError, match=f"`{number}` is for the aggregation '{rule}'"):
        tc.policy_loss("atr", small_batch(), name, **{number: 8})


# Aggregation -----------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    values=st.lists(st.floats(-10, 10), min_size=36, max_size=36),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_aggregation_against_loops(lengths: list[int], values: list[float]) -> None:
    x = torch.tensor(values, dtype=DOUBLE).view(6, 6)[: len(lengths)]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    rows = [x[i, :n].tolist() for i, n in enumerate(lengths)]
    total = math.fsum(v for row in rows for v in row)
    for got, want in (
        (aggregate("token_mean", x, mask), total / sum(lengths)),
        (aggregate("sequence_mean", x, mask), statistics.fmean(map(statistics.fmean, rows))),
        (aggregate("dr_grpo", x, mask, max_length=6), total / (6 * len(lengths))),
        (aggregate("dapo", x, mask, total_tokens=50), total / 50),
    ):
        assert got.item() == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_the_gradient_of_an_aggregation_is_the_weight_of_the_token() -> None:
    weights = {
        "token_mean": [[1 / 7] * 4, [1 / 7] * 2, [1 / 7]],
        "sequence_mean": [[1 / 12] * 4, [1 / 6] * 2, [1 / 3]],
        "dr_grpo": [[1 / 24] * 4, [1 / 24] * 2, [1 / 24]],
        "dapo": [[1 / 20] * 4, [1 / 20] * 2, [1 / 20]],
    }
    extra: dict[str, dict[str, Any]] = {"dr_grpo": {"max_length": 8}, "dapo": {"total_tokens": 20}}
    for name, want in weights.items():
        leaf = VALUES.clone().requires_grad_()
        aggregate(name, leaf, MASK, **extra.get(name, {})).backward()
        assert leaf.grad is not None
        for i, row in enumerate(want):
            assert leaf.grad[i].tolist() == pytest.approx(row + [0.0] * (4 - len(row)))


def test_nothing_unmasked_aggregates_to_zero() -> None:
    nothing = torch.zeros_like(MASK)
    assert aggregate("token_mean", VALUES, nothing).item() == 0.0
    assert aggregate("sequence_mean", VALUES, nothing).item() == 0.0
    assert aggregate("dr_grpo", VALUES, nothing, max_length=8).item() == 0.0


def test_micro_batches_of_dapo_add_up_to_the_token_mean() -> None:
    parts = [
        aggregate("dapo", VALUES[i : i + 1], MASK[i : i + 1], total_tokens=7).item()
        for i in range(3)
    ]
    assert sum(parts) == pytest.approx(aggregate("token_mean", VALUES, MASK).item())


# The loss --------------------------------------------------------------------------------------


def small_batch(**changes: object) -> tc.TokenBatch:
    logp_old = torch.full((3, 4), -1.0, dtype=DOUBLE)
    x = torch.tensor([[0.1, -0.2, 0.5, -0.6], [0.0, 0.3, 0.0, 0.0], [0.7, 0.0, 0.0, 0.0]])
    signs = torch.tensor([[1.0], [-1.0], [1.0]], dtype=DOUBLE).expand(3, 4)
    given = {"logp": logp_old + x, "logp_old": logp_old, "advantages": signs, "mask": MASK}
    return tc.TokenBatch(**{**given, **changes})  # type: ignore[arg-type]


def test_dapo_counts_the_tokens_of_the_batch_when_not_told() -> None:
    batch, method = small_batch(), tc.method("clip")
    assert torch.equal(
        tc.policy_loss(method, batch, "dapo").value, tc.policy_loss(method, batch).value
    )


def test_a_loss_of_an_unknown_method() -> None:
    for function in (tc.policy_loss, tc.coefficient):
        with pytest.raises(ValueError, match="'atr'"):
            function("art", small_batch())
        with pytest.raises(ValueError, match="its name or a mapping"):
            function(7, small_batch())  # type: ignore[arg-type]


def test_unknown_aggregation() -> None:
    with pytest.raises(ValueError, match="'dr_grpo'"):
        tc.policy_loss(tc.method("atr"), small_batch(), aggregation="drgrpo", max_length=8)


@pytest.mark.parametrize("length", [None, 0, -4])
def test_dr_grpo_without_its_length(length: int | None) -> None:
    with pytest.raises(ValueError, match="max_length"):
        tc.policy_loss(tc.method("atr"), small_batch(), aggregation="dr_grpo", max_length=length)


def test_nothing_unmasked_is_a_zero_loss_with_a_zero_gradient() -> None:
    leaf = torch.full((3, 4), math.nan, requires_grad=True)
    batch = small_batch(logp=leaf, mask=torch.zeros_like(MASK))
    for name in ("token_mean", "sequence_mean", "dapo"):
        leaf.grad = None
        loss = tc.policy_loss(tc.method("atr"), batch, aggregation=name)
        loss.value.backward(retain_graph=True)
        assert loss.value.item() == 0.0
        assert leaf.grad is not None
        assert not leaf.grad.any()


# The batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("logp", torch.zeros(3)),
        ("logp", [[0.0] * 4] * 3),
        ("logp", None),
        ("logp_old", None),
        ("advantages", torch.zeros(3, 1)),
        ("advantages", torch.zeros(3, 4, dtype=torch.int64)),
        ("mask", None),
        ("mask", torch.ones(3, 4)),
        ("mask", torch.ones(4, 3, dtype=torch.bool)),
        ("entropy", torch.zeros(3, 5)),
        ("kl_old_new", torch.zeros(4, 3)),
        ("kl_new_old", torch.zeros(3, 4, dtype=torch.int64)),
        ("keys", torch.zeros(3, 4)),
        ("groups", torch.zeros(3, 4)),
    ],
)
def test_a_batch_refuses_what_does_not_fit(field: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=f"`{field}`"):
        small_batch(**{field: wrong})


def test_the_ratio_of_a_batch() -> None:
    batch = small_batch(logp=torch.where(MASK, -1.0, math.nan).to(DOUBLE))
    assert not batch.log_ratio.any()
    assert batch.p_old[MASK].tolist() == pytest.approx([math.exp(-1)] * 7)
    with pytest.raises(AttributeError):
        batch.logp = batch.logp_old  # type: ignore[misc]
