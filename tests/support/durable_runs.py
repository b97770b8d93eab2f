"""Short runs that are cut and continued, and the comparison of what two runs left on disk."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import trl_runs

from trustclip.train.durable.saving import Content

#: What depends on the clock.
CLOCK = {
    "step_time",
    "_current_train_step_time",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_loss",
}


class Rows:
    """Append-only files of a run, as a run directory keeps them."""

    NAMES = ("metrics.jsonl", "samples.jsonl", "gates.jsonl", "generations.jsonl")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, name: str, row: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def cursor(self) -> dict[str, int]:
        files = [self.folder / name for name in self.NAMES]
        return {file.name: file.stat().st_size for file in files if file.exists()}

    def rewind(self, cursor: dict[str, int]) -> None:
        for name in self.NAMES:
            if (file := self.folder / name).exists():
                if name in cursor:
                    os.truncate(file, cursor[name])
                else:
                    file.unlink()

    def read(self) -> dict[str, list[Any]]:
        files = [self.folder / name for name in self.NAMES]
        return {
            file.name: [timeless(json.loads(line)) for line in file.read_text().splitlines()]
            for file in files
            if file.exists()
        }


class Reward:
    """A reward that depends on how often it was asked, and writes down every completion."""

    __name__ = "even"

    def __init__(self, rows: Rows) -> None:
        self.rows, self.calls = rows, 0

    def __call__(self, prompts, completions, trainer_state: Any = None, **columns) -> list[float]:
        self.calls += 1
        rewards = trl_runs.share_of_even_digits(completions)
        for index, (prompt, text) in enumerate(zip(prompts, completions, strict=True)):
            row = {"step": trainer_state.global_step, "index": index, "prompt": prompt}
            if trainer_state.is_world_process_zero:
                self.rows.append("samples.jsonl", {**row, "text": text, "calls": self.calls})
        return [reward + 0.01 * self.calls * (i % 2) for i, reward in enumerate(rewards)]

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Kept:
    """Writes down the gates of every update, and that of each generation."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def generation(self, generation: Any) -> None:
        if generation.index[0] != 0:
            return  # of another rank: the file is the first one's
        row = {"step": generation.step, "index": list(generation.index)}
        row |= {"tokens": generation.tokens, "advantages": generation.advantages.tolist()}
        self.rows.append("generations.jsonl", row | {"rewards": generation.rewards})

    def gates(self, row: dict[str, Any]) -> None:
        self.rows.append("gates.jsonl", row)


def recorder(rows: Rows) -> Any:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class Recorder(TrainerCallback, ExportableState):
        """Writes log lines, numbered: a callback with a state of its own."""

        def __init__(self) -> None:
            self.lines = 0

        def on_log(self, args, state, control, logs=None, **_) -> None:
            if logs and "train_runtime" not in logs:
                self.lines += 1
                row = {"step": state.global_step, "line": self.lines, **timeless(logs)}
                rows.append("metrics.jsonl", row)

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"lines": self.lines}}

    return Recorder()


def _adapters(dropout: float) -> Any:
    import torch
    from peft import LoraConfig

    torch.manual_seed(0)
    return LoraConfig(r=4, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")


ALWAYS = dict(save_strategy="steps", save_steps=1)


def grpo(folder: Path, *, lora: bool = False, prompts: int = 16, **settings: Any) -> Any:
    """A trainer that has not begun; its checkpoints and rows are, or will be, in ``folder``."""
    from datasets import Dataset

    from trustclip.train.trainers import DurableGRPOConfig, DurableGRPOTrainer

    model, tokenizer = trl_runs.fresh_model()
    rows = Rows(folder / "rows")
    trainer = DurableGRPOTrainer(
        model=model,
        reward_funcs=Reward(rows),
        args=DurableGRPOConfig(
            output_dir=str(folder / "checkpoints"),
            **{**trl_runs.COMMON, **ALWAYS, "max_completion_length": 5, **settings},
        ),
        train_dataset=Dataset.from_dict({"prompt": trl_runs.PROMPTS[:prompts]}),
        processing_class=tokenizer,
        peft_config=_adapters(0.0) if lora else None,
    )
    return _followed(trainer, rows)


def sft(folder: Path, *, lora: bool = False, **settings: Any) -> Any:
    """As `grpo`, for supervised training on seven examples; dropout in the adapters."""
    from datasets import Dataset, disable_progress_bars

    from trustclip.engines.trl.upstream import SFTConfig
    from trustclip.train.trainers import DurableSFTTrainer

    disable_progress_bars()

    model, tokenizer = trl_runs.fresh_model()
    rows = Rows(folder / "rows")
    own = dict(per_device_train_batch_size=2, learning_rate=1e-3, max_length=32, warmup_steps=2)
    shared = {name: trl_runs.COMMON[name] for name in _OF_BOTH}
    examples = [{"prompt": p, "completion": str(i)} for i, p in enumerate(trl_runs.PROMPTS[:7])]
    trainer = DurableSFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(folder / "checkpoints"), **{**shared, **ALWAYS, **own, **settings}
        ),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=_adapters(0.2) if lora else None,
    )
    return _followed(trainer, rows)


_OF_BOTH = (
    "report_to", "use_cpu", "bf16", "gradient_checkpointing", "disable_tqdm", "seed",
)  # fmt: skip


def _followed(trainer: Any, rows: Rows) -> Any:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.journal = rows
    trainer.add_callback(recorder(rows))
    trainer.recorder = Kept(rows)
    return trainer


def cut(source: Path, target: Path, step: int) -> Path:
    """What a run would have left, killed between the checkpoint of ``step`` and the next one.

    Its rows are all there, those of the updates after the checkpoint too.
    """
    (target / "checkpoints").mkdir(parents=True)
    shutil.copytree(source / "rows", target / "rows")
    shutil.copy(source / "checkpoints" / "start.json", target / "checkpoints")
    name = f"checkpoints/step-{step:06d}"
    shutil.copytree(source / name, target / name)
    return target


def cut_everywhere(whole: Any, folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Differences, told to the first rank, of a run of 6 updates that is cut after each."""
    accelerator, found = whole.accelerator, []
    for step in range(1, 6):
        if accelerator.is_main_process:
            cut(folder / "whole", folder / f"cut-{step}", step)
        accelerator.wait_for_everyone()
        trainer = grpo(folder / f"cut-{step}", **settings)
        torch.manual_seed(99)
        assert trainer.train_durably()
        if accelerator.is_main_process:
            found += differences(folder / "whole", folder / f"cut-{step}", after=step)
    return found


def differences(a: Path, b: Path, after: int) -> list[str]:
    """Files of checkpoints past ``after``, and rows, that are not the same in two runs."""
    found = []
    for theirs in sorted((a / "checkpoints").glob("step-*")):
        if int(theirs.name[5:]) > after:
            ours = b / "checkpoints" / theirs.name
            names = sorted(_files(theirs) | _files(ours))
            found += [f"{ours.name}/{n}" for n in names if not _same(theirs / n, ours / n)]
    rows, others = Rows(a / "rows").read(), Rows(b / "rows").read()
    return found + [name for name in rows if rows[name] != others.get(name)]


def _files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def _same(a: Path, b: Path) -> bool:
    if a.name in ("manifest.json", "generation_config.json"):
        # Sums of files with clock times; and a config that models of one process share.
        return True
    if not (a.exists() and b.exists()):
        return False
    if a.parent.name == "shards":  # the order of entries in their headers is not fixed
        return _contents(a) == _contents(b)
    if a.suffix == ".json":
        return timeless(json.loads(a.read_text())) == timeless(json.loads(b.read_text()))
    return a.read_bytes() == b.read_bytes()


def _contents(file: Path) -> Any:
    from safetensors import safe_open

    with safe_open(file, "pt") as stored:
        names = sorted(stored.keys())
        values = [stored.get_tensor(name) for name in names]
        bits = [value.contiguous().view(-1).view(torch.uint8).tolist() for value in values]
        meta = json.loads(stored.metadata()["DCP_SHARDING_INFO"])
        return meta, {n: (v.shape, v.dtype, b) for n, v, b in zip(names, values, bits, strict=True)}


def timeless(value: Any) -> Any:
    """Nested values without what depends on the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCK}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def save_state(folder: Path, name: str, state: Any) -> None:
    """Write nested state into a folder, as a rank does into a checkpoint."""
    content = Content()
    content.state(name, state)
    content.write_own(folder)
