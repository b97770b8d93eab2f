"""Advantages of groups: by hand, and where rewards are equal, not finite or no groups."""

import math
import statistics
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustclip_lab.tabular import advantages

FUNCTIONS = (
    advantages.group_mean,
    advantages.group_standardized,
    partial(advantages.group_standardized, eps=0.0),
    advantages.leave_one_out,
)


@given(
    groups=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 0.1, -2.0, 3.5]), min_size=4, max_size=4), min_size=1
    )
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_advantages_by_hand(groups: list[list[float]]) -> None:
    rewards = torch.tensor(groups, dtype=torch.float64).flatten()
    mean, standardized, left_out = [], [], []
    for group in groups:
        for i, reward in enumerate(group):
            others = group[:i] + group[i + 1 :]
            centred = reward - statistics.fmean(group)
            mean.append(centred)
            standardized.append(centred / (statistics.stdev(group) + 1e-4))
            left_out.append(reward - statistics.fmean(others))
    for function, want in (
        (advantages.group_mean, mean),
        (advantages.group_standardized, standardized),
        (advantages.leave_one_out, left_out),
    ):
        got = function(rewards, 4)
        assert got.shape == rewards.shape
        assert got.tolist() == pytest.approx(want, rel=1e-9, abs=1e-9), function.__name__


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 3, 16])
def test_advantages_of_equal_rewards_are_zero(size: int, dtype: torch.dtype) -> None:
    """Exactly, though the mean of equal numbers is rounded."""
    for reward in (0.1, -1 / 3, 1e6 + 0.1):
        mixed = torch.tensor([reward] * size + [0.0, reward] + [0.0] * (size - 2), dtype=dtype)
        for function in FUNCTIONS:
            got = function(mixed, size)
            assert got[:size].tolist() == [0.0] * size, function
            assert got[size:].all(), function


def test_advantages_of_rewards_that_are_not_finite_are_not() -> None:
    for function in FUNCTIONS:
        assert function(torch.full((4,), math.inf), 4).isnan().all()


@pytest.mark.parametrize(("count", "size"), [(6, 4), (4, 1), (4, 0)])
def test_rewards_that_do_not_make_groups(count: int, size: int) -> None:
    for function in FUNCTIONS:
        with pytest.raises(ValueError, match="group"):
            function(torch.ones(count), size)
