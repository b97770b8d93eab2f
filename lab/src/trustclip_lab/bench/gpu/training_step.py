"""Stage (c): an update of TRL, stock and ours, of models of real shapes with random weights.

Completions are drawn at random, not sampled: scoring, loss, backward and the step are measured.
"""

import contextlib
import gc
import io
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trustclip.train.configs import lora_config
from trustclip_lab.bench.gpu.cases import Case, Place, Row, Stage
from trustclip_lab.bench.gpu.models import random_model
from trustclip_lab.bench.table import Table

#: What differs from one line to the next; None for stock TRL.
TRAINERS: dict[str, dict[str, Any] | None] = {
    "stock TRL": None,
    "trustclip, our head": {"head": "trustclip"},
    "trustclip, TRL's head": {"head": "trl"},
    "exact KL is the constraint": {"head": "trustclip", "method": "full_kl"},
    "exact KL is watched": {"head": "trustclip", "exact_kl_every": 1},
    "nothing skipped": {"head": "trustclip", "skip_zero_advantage": False},
}
_UPDATES = 4  # two on each generation, so that the second one is off the policy
_PARTS = ("scoring", "forward", "backward", "optimizer", "rest")


def _sizes(place: Place) -> dict[str, int]:
    """Completions of a micro-batch, micro-batches of an update, tokens of prompt and completion."""
    if place.tiny:
        return {"batch": 8, "accumulation": 1, "prompt": 12, "completion": 16}
    return {"batch": 8, "accumulation": 4, "prompt": 202, "completion": 1846}


def update(model: str, lora: bool, label: str, place: Place) -> dict[str, Any]:
    """Seconds by part of an update, and peak memory.

    Args:
      model: of `trustclip_lab.bench.gpu.models.SHAPES`.
      lora: train adapters, with a frozen head.
      label: of `TRAINERS`.
      place: where.
    """
    import torch

    sizes = _sizes(place)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = _trainer(model, lora, TRAINERS[label], place, folder)
        clock = Clock(trainer, place.cuda)
        if place.cuda:
            torch.cuda.reset_peak_memory_stats()
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        peak = torch.cuda.max_memory_reserved() / 2**20 if place.cuda else None
        seconds = clock.means(first=_UPDATES // 2)
    del trainer
    gc.collect()
    if place.cuda:
        torch.cuda.empty_cache()
    tokens = sizes["batch"] * sizes["accumulation"] * (sizes["prompt"] + sizes["completion"])
    return {"seconds": seconds, "mib": peak, "tokens": tokens}


def _trainer(
    model: str, lora: bool, settings: dict[str, Any] | None, place: Place, folder: str
) -> Any:
    from datasets import Dataset

    from trustclip.engines import trl
    from trustclip.engines.trl.upstream import GRPOConfig, GRPOTrainer

    sizes, stock = _sizes(place), settings is None
    method_options: dict[str, Any] = {"epsilon": 0.2}
    if settings is not None:
        method_options = {"method": "clip", **settings}
    args = (GRPOConfig if stock else trl.ConstrainedGRPOConfig)(
        folder,
        per_device_train_batch_size=sizes["batch"],
        gradient_accumulation_steps=sizes["accumulation"],
        num_generations=8,
        num_iterations=2,
        max_completion_length=sizes["completion"],
        max_steps=_UPDATES,
        learning_rate=1e-6,
        loss_type="dr_grpo",
        scale_rewards="none",
        logging_steps=1000,
        report_to="none",
        save_strategy="no",
        use_cpu=not place.cuda,
        bf16=place.cuda,
        gradient_checkpointing=place.cuda,
        disable_tqdm=True,
        **method_options,
    )
    policy, tokenizer = random_model(model, place)
    prompts = [[{"role": "user", "content": str(number)}] for number in range(64)]
    return (GRPOTrainer if stock else trl.ConstrainedGRPOTrainer)(
        model=policy,
        reward_funcs=_half,  # type: ignore[arg-type]
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        peft_config=lora_config(32, 64) if lora else None,
        rollout_func=partial(_rollout, sizes, policy.config.vocab_size),
    )


def _rollout(sizes: dict[str, int], vocabulary: int, prompts: Any, trainer: Any) -> dict[str, Any]:
    """Random prompts and completions of full length, of the same numbers in every trainer."""
    import torch

    g = torch.Generator().manual_seed(trainer.state.global_step)
    count = len(prompts)
    rollout = {
        f"{name}_ids": torch.randint(0, vocabulary, (count, sizes[name]), generator=g).tolist()
        for name in ("prompt", "completion")
    }
    return rollout | {"logprobs": None}


def _half(completions: Sequence[Any], **_: Any) -> list[float]:
    """Different rewards within every other group of 8, equal rewards in the rest."""
    return [float(i % 2) if i // 8 % 2 == 0 else 0.5 for i in range(len(completions))]


class Clock:
    """Seconds of an update's parts, the device waited for at each end.

    Args:
      trainer: whose methods are timed.
      cuda: whether there is a device to wait for.
    """

    def __init__(self, trainer: Any, cuda: bool) -> None:
        self._cuda, self._spans = cuda, []
        for part, name in (
            ("scoring", "_generate_and_score_completions"),
            ("forward", "compute_loss"),
            ("micro-batch", "training_step"),
        ):
            setattr(trainer, name, self._timed(part, getattr(trainer, name)))
        make = trainer.create_optimizer

        def create(*args: Any, **kwargs: Any) -> Any:
            optimizer = make(*args, **kwargs)
            optimizer.step = self._timed("optimizer", optimizer.step)
            return optimizer

        trainer.create_optimizer = create
        self._updates: list[tuple[float, int]] = [(0.0, 0)]
        trainer.add_callback(_at_the_end_of_updates(self._record_update))

    def means(self, first: int) -> dict[str, float]:
        """Mean seconds of each part of an update, without the first ones."""
        spans = self._spans[self._updates[first][1] :]
        total = self._updates[-1][0] - self._updates[first][0]
        count = len(self._updates) - 1 - first
        sums = {
            p: sum(t for q, t in spans if q == p) / count
            for p in ("scoring", "forward", "optimizer")
        }
        steps = sum(t for part, t in spans if part == "micro-batch") / count
        sums["backward"] = steps - sums["scoring"] - sums["forward"]
        parts = {**sums, "rest": total / count - steps - sums["optimizer"]}
        return {"update": total / count, **{part: parts[part] for part in _PARTS}}

    def _record_update(self) -> None:
        self._updates.append((self._now(), len(self._spans)))

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._now()
            try:
                return call(*args, **kwargs)
            finally:
                self._spans.append((part, self._now() - start))

        return timed

    def _now(self) -> float:
        import torch

        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _at_the_end_of_updates(call: Callable[[], None]) -> Any:
    from transformers import TrainerCallback

    class AtTheEnd(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            call()

    return AtTheEnd()


def cases(place: Place) -> Sequence[Case]:
    """LoRA and full, the smaller model first, every trainer of one before the next."""
    return [
        Case(
            f"{'tiny' if place.tiny else model}, {'LoRA' if lora else 'full'}: {label}",
            partial(update, model, lora, label),
            expected,
        )
        for model, expected in (("qwen3-0.6b", 25.0), ("qwen3-1.7b", 40.0))
        for lora in (True, False)
        for label in TRAINERS
        if not place.tiny or model == "qwen3-0.6b"
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table: a line per case."""
    columns = ("case", "s per update", *_PARTS, "tokens/s", "peak MiB")
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        v: Any = row.values
        seconds = v["seconds"]
        lines.append(
            (
                row.key, seconds["update"], *(seconds[part] for part in _PARTS),
                v["tokens"] / seconds["update"], v["mib"],
            )
        )  # fmt: skip
    notes = [
        "Completions are given, so nothing is sampled; half of the groups have equal rewards. "
        "Mean of the last two of four updates, two on each generation; the scores of a "
        "generation count in the updates they are made in."
    ]
    return [Table("An update", columns, lines, notes)] if lines else []


STAGE = Stage("A training step", 2.0, cases, tables, ("trl", "datasets", "peft"), timed=True)
