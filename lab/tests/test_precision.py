"""Coefficients in float32 next to float64: where they differ, and nowhere else."""

import dataclasses
from typing import Any

import pytest
import torch

import trustclip as tc
from trustclip.constraints.candidates import Candidates
from trustclip_lab.bench.gpu.edges import batch_of


def both(method: Any, given: dict[str, Any]) -> torch.Tensor:
    """Tokens whose coefficient in float32 is not that of the same numbers in float64."""
    low, high = (
        {k: _of(v, dtype) for k, v in given.items()} for dtype in (torch.float32, torch.float64)
    )
    got = tc.coefficient(method, tc.TokenBatch(**low)).double()
    want = tc.coefficient(method, tc.TokenBatch(**high))
    return (got - want).abs() > 1e-3 * want.abs().clamp(min=1)


def _of(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Candidates):
        return value.map(lambda x: x.to(dtype))
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floats else value


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    batch = batch_of(32, 512)
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.init}


@pytest.mark.parametrize("name", sorted(tc.methods()))
def test_float32_decides_as_float64_does(name: str, given: dict[str, Any]) -> None:
    """But for a token at the edge of its gate."""
    assert both(tc.method(name), given).double().mean() <= 1e-4


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("bandpo", {}, "logp"),
        ("kpop", {}, "logp_rollout"),
        ("kpop", {"policy": "new"}, "logp"),
    ],
)
def test_a_log_probability_of_zero_is_what_they_disagree_on(
    name: str, arguments: dict[str, Any], field: str, given: dict[str, Any]
) -> None:
    """All that float32 says of it is: within 1.2e-7 of 1."""
    one = given[field] > -0.02
    whole = {**given, field: torch.where(one, 0.0, given[field])}
    apart = both(tc.method(name, **arguments), whole)
    assert apart.any() and (apart & ~one).double().mean() <= 1e-4


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99, 0.999, 1 - 1e-5])
def test_how_far_a_divergence_is_off_there(p: float) -> None:
    """By no more than is said: the rest of float32 is 1.2e-7, that of float64 2.2e-16."""
    from trustclip.constraints.divergences import binary_kl_old_new

    old = torch.tensor([p], dtype=torch.float64).log().float()
    found = [
        binary_kl_old_new(old.to(dtype), torch.zeros(1, dtype=dtype)).double()
        for dtype in (torch.float32, torch.float64)
    ]
    rest = -torch.expm1(old.double())
    most = rest * (rest.log() - torch.tensor(torch.finfo(torch.float32).eps).double().log())
    assert found[0] <= most + 1e-6 and 0 <= found[1] - found[0] <= 21 * rest + 1e-6
