"""Methods beyond the paper's tables against TRL's own, over whole training runs."""

import functools
import math
import tempfile
import types
import typing

import pytest
import torch
import twin_cases
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import Run, train

import trustclip as tc
from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

#: Loss types of TRL that bring a gate of their own, and what they aggregate like.
AGGREGATED = {"sapo": "grpo", "cispo": "dapo", "vespo": "dapo", "grpo": "grpo"}


def assert_same_training(ours: Run, theirs: Run) -> None:
    assert len(theirs.grad_norms) == 6
    assert ours.grad_norms == pytest.approx(theirs.grad_norms, rel=5e-5)
    assert ours.parameters is not None and theirs.parameters is not None
    # Adam divides by the gradient's size: one that is all rounding error moves a weight as well.
    distance = (ours.parameters - theirs.parameters).norm()
    assert distance < 1e-4 * theirs.parameters.norm()


# A sampler of its own ----------------------------------------------------------------------------


def sampled(prompts: list[str], trainer: typing.Any) -> dict[str, list]:
    """Random completions, and log-probabilities that an engine other than the trainer gave them."""
    generator = torch.Generator().manual_seed(trainer.state.global_step)
    vocabulary = trainer.model.config.vocab_size
    lengths = torch.randint(3, 9, (len(prompts),), generator=generator).tolist()
    completions = [torch.randint(4, 60, (n,), generator=generator).tolist() for n in lengths]
    noise = [0.3 * torch.randn(n, generator=generator) - math.log(vocabulary) for n in lengths]
    tokenizer = trainer.processing_class
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": completions,
        "logprobs": [values.tolist() for values in noise],
    }


class Sampled(GRPOTrainer):
    """TRL as it is with vLLM, but for the sampling itself: that is `sampled`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, rollout_func=sampled, **kwargs)
        self.use_vllm = True
        self._last_loaded_step = -1
        self.vllm_generation = types.SimpleNamespace(sync_weights=lambda: None)


def with_sampler(*args, **kwargs) -> ConstrainedGRPOTrainer:
    return ConstrainedGRPOTrainer(*args, rollout_func=sampled, **kwargs)


def trained_on_samples(tmp_path, method: tc.Method, loss_type: str) -> Run:
    settings = {"method": method.to_dict(), "loss_type": loss_type}
    return train(tmp_path, ConstrainedGRPOConfig, with_sampler, **settings)


@functools.cache
def uncorrected(method: tc.Method, loss_type: str) -> list[float]:
    """Norms of gradients where nothing is corrected; several corrections have one inner method."""
    with tempfile.TemporaryDirectory() as folder:
        return trained_on_samples(folder, method, loss_type).grad_norms


@pytest.mark.parametrize(
    ("method", "trainer"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (number % 3 > 0))
        for number, case in enumerate(twin_cases.SAMPLED)
    ],
    ids=twin_cases.label,
)
def test_same_correction_as_trl_makes_for_vllm(tmp_path, method, trainer):
    twin = method.twins[trainer] | {"use_vllm": False}  # `Sampled` is how it is told to have it
    loss_type = AGGREGATED.get(twin.get("loss_type", ""), "dapo")
    ours = trained_on_samples(tmp_path / "ours", method, loss_type)
    theirs = train(tmp_path / "theirs", GRPOConfig, Sampled, **{"loss_type": loss_type, **twin})
    assert_same_training(ours, theirs)
    inner = uncorrected(getattr(method, "inner", tc.method(method.name)), loss_type)
    assert inner != pytest.approx(ours.grad_norms, rel=1e-2)
