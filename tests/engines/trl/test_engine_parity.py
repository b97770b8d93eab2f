"""TRL's loss under our engine has the gradient that verl's has: see `engine_cases`.

The same cases run through verl in ``engines/verl/test_losses.py``, in verl's environment; both
sides are held to one gradient.
"""

import dataclasses
from typing import Any

import engine_cases
import method_cases
import pytest
import torch
from torch import Tensor
from trl_runs import build

import trustclip as tc


@pytest.fixture(scope="module", params=engine_cases.VERL_MODES)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    longest = {"max_completion_length": engine_cases.MAX_LENGTH}
    return build(tmp_path_factory.mktemp("run"), loss_type=request.param, **longest)


def gradient_of(
    trainer: Any, method: tc.Method, batch: tc.TokenBatch, patch: pytest.MonkeyPatch, **more: Tensor
) -> Tensor:
    """Gradient of TRL's loss under our engine in the log-probabilities."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    logp = batch.logp.clone().requires_grad_()
    rows, length = logp.shape
    tokens = torch.ones(rows, length, dtype=torch.int64)

    def scored(self: Any, model: Any, input_ids: Tensor, *_: Any, **__: Any) -> Any:
        asked = logp[input_ids[:, 0]]  # the prompt is the number of the row
        return asked, torch.zeros_like(asked), None

    patch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", scored)
    trainer.method = method
    trainer._examined = True  # the sampler's log-probabilities are made up, some above 0
    trainer.current_gradient_accumulation_steps = 1
    inputs = {
        "prompt_ids": torch.arange(rows)[:, None],
        "prompt_mask": tokens[:, :1],
        "completion_ids": tokens,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.logp_old,
        "sampling_per_token_logps": batch.logp_rollout,
        "num_items_in_batch": batch.mask.sum(),
        "sample_index": torch.arange(rows),
        "generated": torch.full((rows,), -1),  # by an earlier policy
    }
    trainer._compute_loss(trainer.model, inputs | more).backward()
    assert logp.grad is not None
    return logp.grad.double()


@pytest.mark.parametrize("name", dict.fromkeys(m.name for m in engine_cases.TRAINED))
def test_trl_gives_the_gradient_of_both_engines(
    trainer: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variant under one aggregation, which knows none of them; the defaults under all."""
    for method in [m for m in engine_cases.TRAINED if m.name == name]:
        if trainer.loss_type != "grpo" and method != tc.method(name):
            continue
        batch = engine_cases.batch_for(method)
        want = engine_cases.expected_gradient(method, batch, trainer.loss_type)
        got = gradient_of(trainer, method, batch, monkeypatch)
        said = f"{method_cases.label(method)}: "
        torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-9, msg=said.__add__)


#: Methods that mask tokens for the sampler and weigh none.
MASKS = [tc.method("opsm", anchor="rollout", delta=0.1), tc.method("trm", anchor="rollout")]


@pytest.mark.parametrize("method", MASKS, ids=method_cases.label)
def test_trls_weights_for_the_sampler_compose_with_a_mask(
    trainer: Any, method: tc.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask corrects nothing: TRL's weights multiply what it leaves, once."""
    batch = engine_cases.batch_for(method)
    weights = torch.linspace(0.3, 3.0, batch.logp.numel()).view_as(batch.logp)
    monkeypatch.setattr(trainer, "use_vllm", True)
    monkeypatch.setattr(trainer, "vllm_importance_sampling_correction", True)
    got = gradient_of(trainer, method, batch, monkeypatch, importance_sampling_ratio=weights)
    want = engine_cases.expected_gradient(method, batch, trainer.loss_type) * weights
    assert want.any()
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-9)


def test_trls_mask_of_sequences_composes_with_ours(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence is kept where both keep it; with one threshold the second changes nothing."""
    ours, loose = (tc.method("opsm", anchor="rollout", delta=delta) for delta in (0.1, 1e9))
    batch = engine_cases.batch_for(ours)
    far = batch.given("logp_rollout").clone()
    far[1] += 1.0  # of a negative advantage
    batch = dataclasses.replace(batch, logp_rollout=far)
    alone = gradient_of(trainer, ours, batch, monkeypatch)
    whole = gradient_of(trainer, loose, batch, monkeypatch)
    assert not alone[1].any() and whole[1].any() and alone.any()
    monkeypatch.setattr(trainer, "off_policy_mask_threshold", 0.1)
    for method in (ours, loose):
        torch.testing.assert_close(gradient_of(trainer, method, batch, monkeypatch), alone)
