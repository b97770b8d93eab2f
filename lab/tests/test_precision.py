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
