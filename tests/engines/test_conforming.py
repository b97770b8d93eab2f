# pyright: reportMissingImports=false
"""The losses that engines compute, wrapped as their users would, against the Rosetta table's rows.

The engines' own code runs here: TRL's trainer, verl's and SkyRL's loss functions, prime-rl's file.
"""

import collections
import importlib.util
import sys
import types
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import checkouts
import pydantic
import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.twins import ACTOR

#: One advantage for each sequence is what these engines pass.
OWN_ADVANTAGES = ["advantages by token"]

Loss = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


#: Losses that compute their gates in the precision of the log-probabilities, in every engine.
IN_HALF = ("sapo", "cispo")


def conforms(loss: Loss, method: tc.Method, row: str, leave_out: list[str] | None = None) -> None:
    """The loss has the method's gradient, but for rounding in bfloat16 where it does not widen."""
    found = tc.conform(loss, method, leave_out=leave_out or [])
    rounded = [one for one in found.differences if one.cause == "rounding" and row in IN_HALF]
    assert len(rounded) == len(found.differences), found


# TRL -------------------------------------------------------------------------------------------


def of_trl(folder: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Loss:
    """TRL's loss under its defaults and these settings; it has no vLLM, so no sampler's numbers."""
    pytest.importorskip("trl", reason="TRL has another environment than verl")
    import test_twins

    trainer = test_twins.trainer_of("TRL", settings, folder)

    def loss(logp, logp_old, advantages, mask, logp_rollout=None):
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


@pytest.mark.parametrize("row", ["dapo", "cispo"])
def test_trl_over_ranks(row: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="TRL has another environment than verl")
    import test_twins

    trainer = test_twins.trainer_of("TRL", TRL[row], tmp_path)

    def loss(logp, logp_old, advantages, mask, total_tokens, ranks):
        monkeypatch.setattr(trainer.accelerator.state, "num_processes", ranks, raising=False)
        given = logp_old, advantages, mask, None
        return test_twins.loss_of(trainer, monkeypatch, logp, *given, torch.tensor(total_tokens))

    conforms(loss, tc.preset("trl", row), row, OWN_ADVANTAGES)


# verl ------------------------------------------------------------------------------------------


def of_verl(mode: str) -> Loss:
    """A loss function of verl, with its defaults."""
    pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")
    from engines.verl.test_twins import composed, loss_of

    config, _ = composed({f"{ACTOR}.policy_loss.loss_mode": mode})

    def loss(logp, logp_old, advantages, mask):
        return loss_of(config, logp, logp_old, advantages, mask)

    return loss


VERL = ["vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo"]


@pytest.mark.parametrize("mode", VERL)
def test_verl(mode: str) -> None:
    conforms(of_verl(mode), tc.preset("verl", mode), mode)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_verl_over_ranks(aggregation: str) -> None:
    pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")
    from engines.verl.test_twins import composed, loss_of

    config, _ = composed({f"{ACTOR}.loss_agg_mode": aggregation})

    def loss(logp, logp_old, advantages, mask, total_tokens, total_sequences, ranks):
        config.global_batch_info.update(
            dp_size=ranks, batch_num_tokens=total_tokens, global_batch_size=total_sequences
        )
        return loss_of(config, logp, logp_old, advantages, mask)

    conforms(loss, tc.preset("verl"), "vanilla")


# Tinker ----------------------------------------------------------------------------------------


TINKER = ["importance_sampling", "ppo", "cispo", "dro"]


@pytest.mark.filterwarnings("ignore:`logp` has numbers above")  # the hard batches are densities
@pytest.mark.parametrize("row", TINKER)
def test_tinker(row: str) -> None:
    """The method in Tinker's client; its server minimises -weights * logp with what is sent."""
    tinker = pytest.importorskip("tinker", reason="tinker is not installed here: make verl-setup")
    from engines.test_other_engines import datum_of, sent_to_server

    method = tc.preset("tinker", row)

    def loss(logp, advantages, mask, logp_rollout):
        rows = zip(logp_rollout, advantages, mask, strict=True)
        data = [datum_of(tinker, logprobs=b, advantages=a, mask=m) for b, a, m in rows]
        weights, _ = sent_to_server(method, data, list(logp.detach()))
        return -(torch.stack(weights) * logp.float()).sum()

    found = tc.conform(loss, method)
    assert found and (found.aggregation, found.factor) == ("sum", 1), found


# prime-rl --------------------------------------------------------------------------------------

#: Its losses, by the first word of their configuration, with our rows: before September 2026.
PRIME_RL = {"Default": "dppo+kl", "IPO": "ipo+kl"}


@pytest.fixture
def prime_rl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its file of losses, and its configurations of them, from a checkout.

    The decorators that check types, and what the file imports for other losses, do nothing here.
    """
    folder = checkouts.checkout("PRIME_RL", "prime-rl")
    path = folder / "packages/prime-rl-configs/src/prime_rl/configs/trainer.py"
    wanted = [f"{name}LossConfig" for name in (*PRIME_RL, "Custom")]
    scope = {"BaseConfig": pydantic.BaseModel, "Field": pydantic.Field}
    configs = checkouts.parts_of(path, wanted, scope, "configs_of_prime_rl")
    shapes = {name: collections.defaultdict(lambda: Any) for name in ("Bool", "Float", "Int")}
    names = {name: getattr(configs, name, None) for name in (*wanted, "LossConfig")}
    for path, given in {
        "beartype": {"beartype": lambda f: f},
        "jaxtyping": {"jaxtyped": lambda typechecker: lambda f: f, **shapes},
        "prime_rl.configs.trainer": names,
        "prime_rl.utils.utils": {"import_object": None},
    }.items():
        monkeypatch.setitem(sys.modules, path, types.SimpleNamespace(**given))
    path = folder / "src/prime_rl/trainer/rl/loss.py"
    spec = importlib.util.spec_from_file_location("losses_of_prime_rl", path)
    assert spec is not None and spec.loader is not None
    losses = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, losses)
    spec.loader.exec_module(losses)
    return types.SimpleNamespace(**{**names, **vars(losses)})


@pytest.mark.parametrize("config", PRIME_RL)
def test_prime_rl(config: str, prime_rl: Any) -> None:
    if prime_rl.DefaultLossConfig is None:
        pytest.skip("this prime-rl has other losses: see test_other_engines.py")
    own = prime_rl.setup_rl_loss_fn(getattr(prime_rl, f"{config}LossConfig")())

    def loss(logp, advantages, mask, logp_rollout, segment_id, total_tokens):
        total = 0
        for i in segment_id.unique():
            tokens = [x[segment_id == i] for x in (logp, logp_rollout, advantages, mask)]
            total += own(prime_rl.LossInputs(*tokens[:2], None, *tokens[2:])).loss
        return total / total_tokens

    conforms(loss, tc.preset("prime-rl", PRIME_RL[config]), config)


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
