"""The level of turns: each run of the policy's own tokens is a sequence of its own."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import trustclip as tc
from trustclip.constraints.levels import reduce
from trustclip.engines.limits import ALONE, ENGINES, refusal
from trustclip.engines.verl.checks import Installed, remarks

METHODS = [
    {"name": "clip", "epsilon": 0.1},
    {"name": "clip_higher", "low": 0.2, "high": 0.3, "side": "strict"},
    {"name": "atr", "delta": 0.01},
    {"name": "atr", "delta": 0.1, "reduction": "sum", "weight": "token"},
    {"name": "atr", "delta": 0.05, "reduction": "max"},
    {"name": "icepop", "inner": {"name": "clip", "epsilon": 0.1}},
]


def at(level: str, method: dict) -> tc.Method:
    inner = method.get("inner")
    if inner is not None:
        return tc.method(**{**method, "inner": {**inner, "level": level}})
    return tc.method(**method, level=level)


def batch(mask: Tensor, seed: int = 0) -> tc.TokenBatch:
    generator = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(mask.shape, generator=generator, dtype=torch.float64)

    old = -1 - noise().abs()
    return tc.TokenBatch(old + 0.3 * noise(), old, noise(), mask, logp_rollout=old + 0.5 * noise())


def apart(whole: tc.TokenBatch) -> tuple[tc.TokenBatch, list[list[tuple[int, int]]]]:
    """Every turn as a sequence of its own, and the place of each of its tokens."""
    turns: list[list[tuple[int, int]]] = []
    for row, marks in enumerate(whole.mask.tolist()):
        for place, own in enumerate(marks):
            if own and place and marks[place - 1]:
                turns[-1].append((row, place))
            elif own:
                turns.append([(row, place)])
    longest = max(map(len, turns))

    def split(x: Tensor) -> Tensor:
        rows = [[x[at].item() for at in turn] + [0.0] * (longest - len(turn)) for turn in turns]
        return torch.tensor(rows, dtype=torch.float64)

    names = ("logp", "logp_old", "advantages", "logp_rollout")
    fields: dict[str, Any] = {name: split(getattr(whole, name)) for name in names}
    mask = torch.tensor([[n < len(turn) for n in range(longest)] for turn in turns])
    return tc.TokenBatch(**fields, mask=mask), turns


MASKS = st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4).filter(
    lambda rows: any(map(any, rows))
)


@settings(max_examples=25)
@given(MASKS, st.integers(0, 99))
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_turn_is_a_sequence_of_its_own(method: dict, rows: list, seed: int) -> None:
    whole = batch(torch.tensor(rows), seed)
    alone, turns = apart(whole)
    found = tc.coefficient(at("turn", method), whole)
    want = tc.coefficient(at("sequence", method), alone)
    expected = torch.zeros_like(found)
    for turn, values in zip(turns, want, strict=True):
        for n, place in enumerate(turn):
            expected[place] = values[n]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "max"])
def test_a_nan_breaks_its_own_turn_alone(reduction: str) -> None:
    mask = torch.tensor([[True, True, False, True, True]])
    x = torch.tensor([[1.0, torch.nan, 5.0, 3.0, 2.0]])
    found = reduce("turn", reduction, x, mask)[0]  # type: ignore[arg-type]
    assert found[:2].isnan().all() and found[2] == 0 and found[3:].isfinite().all()


def test_where_it_cannot_be_applied() -> None:
    method = tc.method("tis", inner={"name": "clip", "level": "turn"})
    alone = refusal(method, ALONE)
    assert alone is not None and "no tools and no rollout_func" in alone
    assert "level 'sequence'" in (refusal(method, ENGINES["Stable-Baselines3"]) or "")
    assert refusal(method, ENGINES["TRL"]) is refusal(method, ENGINES["verl"]) is None
    assert refusal(tc.method("clip", level="sequence"), ALONE) is None


@pytest.mark.parametrize(
    ("masks", "bypass", "refused"),
    [("token_k1", False, True), ("seq_mean_k1", False, False), ("token_k1", True, False)],
)
def test_verl_must_not_mask_single_tokens(masks: str, bypass: bool, refused: bool) -> None:
    policy_loss = {"loss_mode": "trustclip", "method": {"name": "clip", "level": "turn"}}
    config = {
        "actor_rollout_ref": {"actor": {"policy_loss": policy_loss}},
        "algorithm": {"rollout_correction": {"rollout_rs": masks, "bypass_mode": bypass}},
    }
    errors = [found.text for found in remarks(config, Installed("0.9.1"))]
    assert any("masks tokens inside of turns" in text for text in errors) is refused
