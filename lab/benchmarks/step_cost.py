"""A whole training step of a tiny model on a CPU: generation, rewards, update.

python lab/benchmarks/step_cost.py --help
"""

import contextlib
import io
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from typing import Any

from printed import measured

from trustclip.support.checked import Count
from trustclip_lab.bench.table import Table

#: Row -> settings of ours, or None for stock TRL.
VARIANTS: dict[str, dict[str, Any] | None] = {
    "stock TRL": None,
    "ours": {},
    "trustclip, transformers decoder": {"decoder": "transformers"},
    "trustclip, TRL head": {"head": "trl"},
    "trustclip, nothing skipped": {"skip_zero_advantage": False},
    "trustclip, exact KL": {"method": "full_kl"},
    "trustclip, exact KL, TRL head": {"method": "full_kl", "head": "trl"},
}


@dataclass(frozen=True)
class StepOptions:
    """What is measured."""

    updates: Count = 32
    """Updates of a run."""
    updates_per_generation: Count = 16
    """Updates per generation of samples."""
    completions: Count = 16
    """Completions per update, 8 for each prompt."""
    tokens: Count = 32
    """Longest completion."""
    vocabulary: int | None = None
    """Vocabulary size, at least that of the tiny model (the default); Qwen3 has 151936."""
    lora: bool = False
    """Train adapters, with a frozen head."""
    repeats: Count = 5
    """Repetitions; the median is reported."""

    def __post_init__(self) -> None:
        if self.vocabulary is not None and self.vocabulary < 512:
            raise ValueError(f"--vocabulary must be at least 512, got {self.vocabulary}.")
        if self.completions % 8:
            raise ValueError(f"--completions must be a multiple of 8, got {self.completions}.")


def run(options: StepOptions) -> list[Table]:
    """The table."""
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(-1, options.repeats):
        for name, settings in VARIANTS.items():
            duration = _seconds(options, settings)
            if turn >= 0:  # the first turn fills caches and builds what is built once
                seconds[name].append(duration)
    stock = statistics.median(seconds["stock TRL"])
    rows = [(name, 1e3 * statistics.median(values)) for name, values in seconds.items()]
    return [
        Table(
            f"A training step: {options.completions} completions of up to {options.tokens} tokens, "
            f"{options.updates_per_generation} updates a generation"
            + (f", V = {options.vocabulary}" if options.vocabulary else "")
            + (", LoRA" if options.lora else ""),
            ("variant", "CPU ms", "× stock TRL"),
            [(name, duration, duration / 1e3 / stock) for name, duration in rows],
            [
                f"Median of {options.repeats} runs of {options.updates} updates, alternating; a "
                "random Qwen3 of 0.4 M parameters, float32; half of the groups have equal rewards."
            ],
        )
    ]


def _seconds(options: StepOptions, settings: dict[str, Any] | None) -> float:
    """CPU seconds of an update."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = _trainer(options, settings, folder)
        with contextlib.redirect_stdout(io.StringIO()):
            start = time.process_time()
            trainer.train()
            return (time.process_time() - start) / options.updates


def _trainer(options: StepOptions, settings: dict[str, Any] | None, folder: str) -> Any:
    from datasets import Dataset

    from trustclip.engines import trl
    from trustclip.engines.trl.upstream import GRPOConfig, GRPOTrainer
    from trustclip.train.configs import lora_config
    from trustclip.train.problems.arithmetic import Arithmetic
    from trustclip.train.tiny import tiny_model

    stock = settings is None
    loss_options: dict[str, Any] = {"epsilon": 0.2} if stock else {"method": "clip", **settings}
    args = (GRPOConfig if stock else trl.ConstrainedGRPOConfig)(
        folder,
        per_device_train_batch_size=options.completions,
        num_generations=8,
        steps_per_generation=options.updates_per_generation,
        max_completion_length=options.tokens,
        max_steps=options.updates,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        num_iterations=2 if options.updates_per_generation == 1 else 1,
        logging_steps=8,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **loss_options,
    )
    model, tokenizer = tiny_model()
    if options.vocabulary is not None:
        model.resize_token_embeddings(options.vocabulary, mean_resizing=False)
    prompts = [
        [{"role": "user", "content": problem.problem}] for problem in Arithmetic().train(256)
    ]
    return (GRPOTrainer if stock else trl.ConstrainedGRPOTrainer)(
        model=model,
        reward_funcs=_half_dense,  # type: ignore[arg-type]
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=lora_config(16, 32) if options.lora else None,
    )


def _half_dense(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """Different rewards within every other group, equal rewards in the rest."""
    texts = [completion[0]["content"] for completion in completions]
    dense = [sum(map(str.isalnum, text)) / max(len(text), 1) for text in texts]
    odd = [sum(map(ord, prompt[0]["content"])) % 2 for prompt in prompts]
    return [reward if own else 0.5 for reward, own in zip(dense, odd, strict=True)]


if __name__ == "__main__":
    measured(StepOptions, run)
