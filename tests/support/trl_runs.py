"""Small real TRL runs, shared by the engine's tests: a tiny Qwen3, a dense reward, no network."""

import os
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_PINS = (Path(__file__).parents[2] / "requirements/run.txt").read_text("utf-8").splitlines()


def needs(requirement: str) -> pytest.MarkDecorator:
    """A test is skipped without a release that ``"name>=1"`` admits; ``"name"`` is the pinned."""
    (pinned,) = [line for line in _PINS if line.startswith(f"{requirement}==")] or [requirement]
    asked = Requirement(pinned)
    fit = [d for d in distributions(name=asked.name) if d.version in asked.specifier]
    return pytest.mark.skipif(not fit, reason=f"needs {pinned}")


PROMPTS = [f"{a}+{b}=" for a in range(4) for b in range(4)]


def share_of_even_digits(completions, **_) -> list[float]:
    """Dense and cheap: every group of samples has different rewards."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [sum(ch in "02468abcdefgh" for ch in text) / max(len(text), 1) for text in texts]


@cache
def _start() -> tuple[dict[str, torch.Tensor], Any, Any]:
    from trustclip.train.tiny import tiny_model

    model, tokenizer = tiny_model(seed=1, layers=1, hidden=64)
    return {k: v.clone() for k, v in model.state_dict().items()}, model.config, tokenizer


def fresh_model() -> tuple[Any, Any]:
    from transformers import Qwen3ForCausalLM

    state, config, tokenizer = _start()
    model = Qwen3ForCausalLM(deepcopy(config))  # a trainer changes it: caching, for one
    model.load_state_dict(state)
    model.tie_weights()
    return model, tokenizer


@dataclass
class Run:
    """What a training run leaves behind."""

    grad_norms: list[float] = field(default_factory=list)
    parameters: Any = None
    history: list[dict[str, float]] = field(default_factory=list)
    trainer: Any = None

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.history if name in row]


COMMON: dict[str, Any] = dict(
    per_device_train_batch_size=16,
    num_generations=4,
    num_iterations=3,
    max_completion_length=10,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    max_steps=6,
    logging_steps=1,
    loss_type="dr_grpo",
    scale_rewards="none",
    report_to="none",
    save_strategy="no",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    disable_dropout=True,
    disable_tqdm=True,
    seed=5,
)


def assert_same_weights(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal to rounding, but for a few elements that hardly any gradient reaches.

    AdamW divides a gradient by its own size, so where that is of the size of rounding errors, the
    step is a share of the learning rate that depends on the CPU.
    """
    apart = (got - want).abs()
    assert (apart > 1e-5).double().mean() < 1e-3
    assert apart.max() < 0.05 * COMMON["learning_rate"]


def build(
    folder, config_class=None, trainer_class=None, *, model: Any = None, given: Any = (), **settings
) -> Any:
    """A trainer that has not begun.

    Args:
      folder: for its output.
      config_class: of its configuration; our engine's when None.
      trainer_class: its own; our engine's when None.
      model: what it trains; a fresh one when None.
      given: arguments of the trainer, over the usual ones.
      settings: of the configuration, over `COMMON`.
    """
    from datasets import Dataset

    from trustclip.engines import trl as ours

    torch.set_num_threads(1)
    fresh, tokenizer = fresh_model()
    args = (config_class or ours.ConstrainedGRPOConfig)(str(folder), **{**COMMON, **settings})
    usual = {
        "model": fresh if model is None else model,
        "reward_funcs": share_of_even_digits,
        "args": args,
        "train_dataset": Dataset.from_dict({"prompt": PROMPTS}),
        "processing_class": tokenizer,
    }
    return (trainer_class or ours.ConstrainedGRPOTrainer)(**{**usual, **dict(given)})


def train(tmp_path, config_class, trainer_class, *, lora: bool = False, **settings) -> Run:
    """Six optimizer steps from the same start; ``settings`` over `COMMON`."""
    from peft import LoraConfig

    if hasattr(config_class, "decoder"):  # the samples of plain TRL
        settings = {"decoder": "transformers", "metrics": "full", **settings}
    peft_config = None
    if lora:
        torch.manual_seed(0)
        peft_config = LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    given = {"peft_config": peft_config}
    trainer = build(tmp_path, config_class, trainer_class, given=given, **settings)
    trainer.train()
    trained = [p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad]
    history = [row for row in trainer.state.log_history if "grad_norm" in row]
    return Run([row["grad_norm"] for row in history], torch.cat(trained), history, trainer)


def plain(tmp_path, **settings) -> Run:
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    return train(tmp_path, GRPOConfig, GRPOTrainer, **settings)


def constrained(tmp_path, method: str, arguments: dict | None = None, **settings) -> Run:
    from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer

    settings = {"method": {"name": method, **(arguments or {})}, **settings}
    return train(tmp_path, ConstrainedGRPOConfig, ConstrainedGRPOTrainer, **settings)
