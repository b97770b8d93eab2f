# pyright: reportMissingImports=false
"""The losses that engines compute, wrapped as their users would, against the Rosetta table's rows.

The engines' own code runs here: TRL's trainer, verl's and SkyRL's loss functions, prime-rl's file.
"""

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import trustclip as tc

#: One advantage for each sequence is what these engines pass.
OWN_ADVANTAGES = ["advantages by token"]

Loss = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    yield


#: Losses that compute their gates in the precision of the log-probabilities, in every engine.
IN_HALF = ("sapo", "cispo")


def conforms(loss: Loss, method: tc.Method, row: str, leave_out: list[str] | None = None) -> None:
    """The loss has the method's gradient, but for rounding in bfloat16 where it does not widen."""
    found = tc.conform(loss, method, leave_out=leave_out or [])
    rounded = [one for one in found.differences if one.cause == "rounding" and row in IN_HALF]
    assert len(rounded) == len(found.differences), found


# TRL -------------------------------------------------------------------------------------------


def of_trl(folder: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Loss:
    """TRL's loss under its defaults and these settings."""
    pytest.importorskip("trl", reason="TRL has another environment than verl")
    import test_twins

    trainer = test_twins.trainer_of("TRL", settings, folder)

    def loss(logp, logp_old, advantages, mask, logp_rollout):
        given = logp_old, advantages, mask, logp_rollout
        return test_twins.loss_of(trainer, monkeypatch, logp, *given)

    return loss


TRL: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "delta": {"delta": 4.0},
    "opsm": {"off_policy_mask_threshold": 0.5},
}


@pytest.mark.parametrize("row", TRL)
def test_trl(row: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = of_trl(tmp_path, monkeypatch, **TRL[row])
    conforms(loss, tc.preset("trl", row), row, OWN_ADVANTAGES)


def test_another_clip_in_trl_is_seen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = of_trl(tmp_path, monkeypatch, epsilon=0.1)
    (one,) = tc.conform(loss, tc.preset("trl"), leave_out=OWN_ADVANTAGES).differences
    assert one.cause == "gate" and "the loss cuts tokens" in one.verdict


# verl ------------------------------------------------------------------------------------------


def of_verl(mode: str) -> Loss:
    """A loss function of verl, with its defaults."""
    pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")
    from engines.verl.test_twins import composed, loss_of

    from trustclip.constraints.twins import ACTOR

    config, _ = composed({f"{ACTOR}.policy_loss.loss_mode": mode})

    def loss(logp, logp_old, advantages, mask):
        return loss_of(config, logp, logp_old, advantages, mask)

    return loss


VERL = ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo"]


@pytest.mark.parametrize("mode", VERL)
def test_verl(mode: str) -> None:
    conforms(of_verl(mode), tc.preset("verl", mode), mode)


# SkyRL -----------------------------------------------------------------------------------------


SKYRL = ["regular", "dual_clip", "gspo", "sapo", "cispo"]
SKYRL += ["dppo", "rollout_is", "importance_sampling"]  # from 0.4 on


@pytest.mark.parametrize("name", SKYRL)
def test_skyrl(name: str, skyrl: Any) -> None:
    from skyrl.train.config import AlgorithmConfig

    if name not in skyrl.PolicyLossRegistry.list_available():
        pytest.skip("SkyRL has this loss from 0.4 on, on Python 3.12: make skyrl-test")
    config = AlgorithmConfig(policy_loss_type=name)
    if version("skyrl") < "0.4":
        config.cispo.cispo_eps_clip_low, config.cispo.cispo_eps_clip_high = 1.0, 4.0
    own = skyrl.PolicyLossRegistry.get(name)

    def loss(logp, logp_old, advantages, mask, logp_rollout):
        return own(logp, logp_old, advantages, config, mask.float(), logp_rollout)[0]

    conforms(loss, tc.preset("skyrl", name), name)


def test_the_page_names_the_losses_that_are_compared() -> None:
    page = (Path(__file__).parents[2] / "docs/conform.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| (\w+) [\d.]+ \| (.+) \| 0 \|$", page)
    shown = {engine: losses.split(", ") for engine, losses in rows}
    assert shown == {"TRL": sorted(TRL), "verl": sorted(VERL), "SkyRL": sorted(SKYRL)}
