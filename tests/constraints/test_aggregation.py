"""Advantages, aggregation, the scalar loss, and what a batch refuses."""

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
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


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize(("number", "rule"), [("max_length", "dr_grpo"), ("total_tokens", "dapo")])
def test_a_number_that_an_aggregation_does_not_read_is_refused(
    name: str, number: str, rule: str
) -> None:
    if name == rule:
        return
    said = f"`{number}` is for the aggregation '{rule}', and '{name}' does not read it: leave it"
    with pytest.raises(ValueError, match=said):
        tc.policy_loss("atr", small_batch(), name, **{number: 8})


# Aggregation -----------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    values=st.lists(st.floats(-10, 10), min_size=36, max_size=36),
)
@example(lengths=[1], values=[3.0] * 36)
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
        (aggregate("dr_grpo", x, mask, max_length=1), total / len(lengths)),
        (aggregate("dapo", x, mask), total / sum(lengths)),
        (aggregate("dapo", x, mask, total_tokens=1), total),
        (aggregate("dapo", x, mask, total_tokens=50), total / 50),
        (aggregate("dapo", x, mask, total_tokens=torch.tensor([1])), total),
    ):
        assert got.shape == () and got.item() == pytest.approx(want, rel=1e-12, abs=1e-12)


# The loss --------------------------------------------------------------------------------------


def small_batch(**changes: object) -> tc.TokenBatch:
    logp_old = torch.full((3, 4), -1.0, dtype=DOUBLE)
    x = torch.tensor([[0.1, -0.2, 0.5, -0.6], [0.0, 0.3, 0.0, 0.0], [0.7, 0.0, 0.0, 0.0]])
    signs = torch.tensor([[1.0], [-1.0], [1.0]], dtype=DOUBLE).expand(3, 4)
    given = {"logp": logp_old + x, "logp_old": logp_old, "advantages": signs, "mask": MASK}
    return tc.TokenBatch(**{**given, **changes})  # type: ignore[arg-type]


def test_unknown_aggregation() -> None:
    with pytest.raises(ValueError, match=r"aggregation 'drgrpo'.*'dr_grpo'"):
        tc.policy_loss(tc.method("atr"), small_batch(), aggregation="drgrpo", max_length=8)


@pytest.mark.parametrize("length", [None, 0, -4, "4", math.nan, torch.tensor([4, 4])])
def test_dr_grpo_without_its_length(length: Any) -> None:
    with pytest.raises(ValueError, match="max_length"):
        tc.policy_loss(tc.method("atr"), small_batch(), aggregation="dr_grpo", max_length=length)


@pytest.mark.parametrize("tokens", [-1, "4", math.nan, torch.tensor([4, 4])])
def test_dapo_with_no_number_of_tokens(tokens: Any) -> None:
    with pytest.raises(ValueError, match="`total_tokens` must be a number of tokens"):
        tc.policy_loss("atr", small_batch(), aggregation="dapo", total_tokens=tokens)


def test_nothing_unmasked_is_a_zero_loss_with_a_zero_gradient() -> None:
    """As in TRL: no NaN that would reach the weights."""
    leaf = torch.full((3, 4), math.nan, requires_grad=True)
    batch = small_batch(logp=leaf, mask=torch.zeros_like(MASK))
    for name, more in [*USED.items(), ("dapo", {}), ("dapo", {"total_tokens": torch.tensor(0)})]:
        loss = tc.policy_loss("atr", batch, aggregation=name, **more)
        (grad,) = torch.autograd.grad(loss.value, leaf, retain_graph=True)
        assert loss.value.item() == 0 and not grad.any()


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
