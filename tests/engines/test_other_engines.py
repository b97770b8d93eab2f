# pyright: reportMissingImports=false
"""Adapters of the loss for other engines: against the real function where PyPI has it, else against
a stand-in with the fields of its documentation.
"""

import dataclasses
import enum
import sys
import types
import typing
from typing import Any

import engine_cases
import method_cases
import pytest
import torch
from torch import Tensor

import trustclip as tc
from trustclip.constraints.candidates import Candidates
from trustclip.engines.limits import ENGINES, refusal

METHODS = ["atr", "gspo", "cispo", "soft_gate"]
each = pytest.mark.parametrize("name", METHODS)


def stand_in(monkeypatch: pytest.MonkeyPatch, path: str, **names: Any) -> None:
    """A module of that path, with every package above it."""
    parts = path.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    for name, value in names.items():
        setattr(sys.modules[path], name, value)


def leaf_of(batch: tc.TokenBatch) -> Tensor:
    return batch.logp.detach().clone().requires_grad_()


def close(got: Tensor | None, want: Tensor) -> None:
    assert got is not None
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-8)


# Tinker ----------------------------------------------------------------------------------------


@each
def test_tinkers_client_sends_the_gradient_to_the_server(name: str) -> None:
    tinker = pytest.importorskip("tinker", reason="tinker is not installed here: make verl-setup")
    from tinker.lib.public_interfaces.training_client import TrainingClient

    from trustclip.engines.tinker import custom_loss

    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    lengths = [int(row.nonzero().max()) + 1 for row in batch.mask]

    def tensor(x: Tensor) -> Any:
        return tinker.TensorData.from_torch(x.float())

    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints([1] * n),
            loss_fn_inputs={
                "target_tokens": [1] * n,
                "logprobs": tensor(batch.logp_old[i, :n]),
                "advantages": tensor(batch.advantages[i, :n]),
                "mask": tensor(batch.mask[i, :n]),
            },
        )
        for i, n in enumerate(lengths)
    ]
    outputs = [{"logprobs": tensor(batch.logp[i, :n])} for i, n in enumerate(lengths)]
    forward = types.SimpleNamespace(loss_fn_outputs=outputs)
    result = TrainingClient._compute_custom_loss(data, custom_loss(name), forward)
    want = tc.coefficient(method, batch)  # the server minimises -weights * logp
    for i, n in enumerate(lengths):
        close(result.data[i].loss_fn_inputs["weights"].to_torch(), want[i, :n])
    assert result.metrics["trustclip/k3"] > 0


# SkyRL -----------------------------------------------------------------------------------------


@pytest.fixture
def skyrl(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("skyrl", reason="skyrl is not installed here: make verl-setup")
    extensions = pytest.importorskip("typing_extensions")
    if sys.version_info < (3, 12):  # pydantic refuses the other one, and SkyRL 0.3 uses it
        monkeypatch.setattr(typing, "TypedDict", extensions.TypedDict)
    from skyrl.backends.skyrl_train.utils import ppo_utils

    return ppo_utils


@each
def test_skyrl_finds_the_loss_in_its_registry(name: str, skyrl: Any) -> None:
    import cloudpickle
    from skyrl.train.config import AlgorithmConfig

    from trustclip.engines import skyrl as ours

    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    ours.register(name, policy_loss_type=f"ours_{name}")
    policy_loss = cloudpickle.loads(cloudpickle.dumps(skyrl.PolicyLossRegistry.get(f"ours_{name}")))
    mask = batch.mask.float()
    scaled = skyrl.apply_loss_reduction_to_advantages_minibatch(
        batch.advantages, mask, "token_mean", micro_batch_size=7, max_seq_len=11
    )
    logp = leaf_of(batch)
    loss, metrics = policy_loss(  # as the worker calls it
        logp,
        batch.logp_old,
        scaled,
        config=AlgorithmConfig(policy_loss_type=f"ours_{name}"),
        loss_mask=mask,
        rollout_logprobs=None,
    )
    loss.backward()
    close(logp.grad, engine_cases.expected_gradient(method, batch, "dapo").float())
    assert metrics["clip_ratio"] == metrics["trustclip/gated"]


def test_skyrl_corrects_for_the_sampler_by_itself(skyrl: Any) -> None:
    from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

    from trustclip.engines import skyrl as ours

    batch = engine_cases.batch_for(tc.method("atr"))
    ours.register("atr", policy_loss_type="ours_corrected")
    rollout = batch.logp_old - 0.1 * torch.sin(torch.arange(batch.logp.numel())).view_as(batch.logp)
    correction = OffPolicyCorrectionConfig(tis_ratio_type="token", token_tis_ratio_clip_high=1.05)
    logp = leaf_of(batch)
    loss, _ = skyrl.PolicyLossRegistry.get("ours_corrected")(
        logp,
        batch.logp_old,
        batch.advantages,
        config=AlgorithmConfig(off_policy_correction=correction),
        loss_mask=batch.mask.float(),
        rollout_logprobs=rollout,
    )
    loss.backward()
    with_sampler = dataclasses.replace(batch, logp_rollout=rollout)
    close(logp.grad, -tc.coefficient(tc.method("tis", inner="atr", ceiling=1.05), with_sampler))


def test_a_correction_is_made_once_in_skyrl(skyrl: Any) -> None:
    from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

    from trustclip.engines import skyrl as ours

    method = tc.method("icepop")
    batch = engine_cases.batch_for(method)
    ours.register("icepop", policy_loss_type="ours_icepop")

    def loss_of(logp: Tensor, **correction: Any) -> Tensor:
        return skyrl.PolicyLossRegistry.get("ours_icepop")(
            logp,
            batch.logp_old,
            batch.advantages,
            config=AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(**correction)),
            loss_mask=batch.mask.float(),
            rollout_logprobs=batch.logp_rollout,
        )[0]

    logp = leaf_of(batch)
    loss_of(logp).backward()
    close(logp.grad, -tc.coefficient(method, batch))
    with pytest.raises(ValueError, match="'icepop' corrects for the sampler, and so does SkyRL"):
        loss_of(leaf_of(batch), tis_ratio_type="token")


def test_skyrl_scales_advantages_which_a_penalty_does_not_stand(skyrl: Any) -> None:
    from trustclip.engines import skyrl as ours

    with pytest.raises(ValueError, match="not proportional to the advantages"):
        ours.register("ppo_penalty", policy_loss_type="ours_penalty")


# prime-rl and NeMo-RL: not on PyPI -------------------------------------------------------------


@each
def test_prime_rl_sums_over_sequences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = dataclasses.make_dataclass("LossOutputs", ["loss", "metrics"])
    stand_in(monkeypatch, "prime_rl.trainer.rl.loss", LossOutputs=outputs)
    from trustclip.engines.prime_rl import loss

    method = tc.method(name)
    batch = engine_cases.batch_for(method)
    logp, weights = leaf_of(batch), torch.linspace(0.5, 2, 11)
    for i, row in enumerate(logp):
        inputs = types.SimpleNamespace(
            trainer_logprobs=row,
            inference_logprobs=batch.logp_old[i],
            advantages=batch.advantages[i],
            loss_mask=batch.mask[i],
            loss_weights=weights,
        )
        output = loss(inputs, method=name)
        output.loss.backward()
        assert all(isinstance(value, Tensor) for value in output.metrics.values())
    close(logp.grad, -weights * tc.coefficient(method, batch))


@each
def test_nemo_rl_divides_by_the_tokens_of_the_update(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = enum.Enum("LossType", ["TOKEN_LEVEL"]), enum.Enum("LossInputType", ["LOGPROB"])
    path = "nemo_rl.algorithms.loss.interfaces"
    stand_in(monkeypatch, path, LossType=kinds[0], LossInputType=kinds[1])
    from trustclip.engines.nemo_rl import TrustclipLoss

    method = tc.method(name)
    batch = engine_cases.batch_for(method)

    def shifted(x: Tensor) -> Tensor:  # NeMo-RL's tensors have a place for the first token
        return torch.cat([torch.full_like(x[:, :1], 9), x], dim=1)

    samples = torch.tensor([1.0, 1, 0, 1, 1, 1, 1])
    data = {
        "prev_logprobs": shifted(batch.logp_old),
        "generation_logprobs": shifted(batch.logp_old),
        "advantages": shifted(batch.advantages),
        "token_mask": shifted(batch.mask.float()),
        "sample_mask": samples,
    }
    logp = leaf_of(batch)
    loss, metrics = TrustclipLoss(name)(logp, data, torch.tensor(6), torch.tensor(40))
    loss.backward()
    kept = batch.mask & (samples > 0)[:, None]
    alone = tc.TokenBatch(batch.logp, batch.logp_old, batch.advantages, kept)
    close(logp.grad, -tc.coefficient(method, alone) / 40)
    assert metrics["num_valid_samples"] == 6


def test_what_an_engine_cannot_supply_is_refused() -> None:
    from trustclip.engines.tinker import custom_loss

    with pytest.raises(ValueError, match="'full_kl' cannot be trained in Tinker: it needs"):
        custom_loss("full_kl")
    with pytest.raises(ValueError, match="did you mean 'delta'"):
        custom_loss("atr", dleta=1)


def test_where_old_is_the_sampler_a_correction_would_do_nothing() -> None:
    from trustclip.engines.tinker import custom_loss

    for engine in ("Tinker", "prime-rl"):
        for name in ("tis", "icepop"):
            text = refusal(tc.method(name), ENGINES[engine])
            assert text and f"'{name}' would do nothing; name its inner method" in text
        nested = tc.method("opsm", inner="tis", anchor="rollout")
        assert "'tis' would do nothing" in (refusal(nested, ENGINES[engine]) or "")
        for name in ("dppo", "opsm", "trm", "vespo"):
            assert refusal(tc.method(name, anchor="rollout"), ENGINES[engine]) is None
    with pytest.raises(ValueError, match="in Tinker they are the same"):
        custom_loss("tis")


# Tracing ---------------------------------------------------------------------------------------


@method_cases.every_name
def test_a_method_is_a_graph_of_tensor_functions(name: str) -> None:
    assert_graph(tc.method(name))


@pytest.mark.slow
def test_every_variant_is_a_graph_of_tensor_functions() -> None:
    for method in method_cases.ALL:
        assert_graph(method)


def assert_graph(method: tc.Method) -> None:
    """`torch.fx` records it on tensors without values, and the record is right for others."""
    from torch.fx.experimental.proxy_tensor import make_fx

    batch = method_cases.random_batch(method, torch.float32)
    held = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    names = [name for name, value in held.items() if isinstance(value, Tensor)]
    further = batch.candidates

    def objective(*tensors: Tensor) -> Tensor:
        fields: Any = dict(zip(names, tensors, strict=False))
        if further is not None:
            fields["candidates"] = Candidates(*tensors[len(names) :], partial=further.partial)
        return method.surrogate(tc.TokenBatch(**fields)).objective

    tensors = [held[name] for name in names]
    if further is not None:
        tensors += [further.logp, further.logp_old, further.logp_rollout]
    graph = make_fx(objective, tracing_mode="fake")(*tensors)
    flipped = [x.flip(0) for x in tensors]
    torch.testing.assert_close(
        graph(*flipped), objective(*flipped), rtol=0, atol=0, msg=lambda m: f"{method}: {m}"
    )
