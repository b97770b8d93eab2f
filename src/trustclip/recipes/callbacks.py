"""What a Hugging Face trainer tells us while it trains."""

from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from trustclip.recipes.progress import Stage
from trustclip.recipes.records import RunDirectory


class Recorder(TrainerCallback):
    """Writes every log line of a trainer to ``metrics.jsonl`` and shows it.

    Args:
      run: where to.
      stage: what to show it on.
      name: value of the column ``stage``.
    """

    def __init__(self, run: RunDirectory, stage: Stage, name: str) -> None:
        self._run, self._stage, self._name = run, stage, name
        self._shown = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or "train_runtime" in (logs or {}):
            return
        row = {"stage": self._name, "step": state.global_step, **(logs or {})}
        self._run.log(row)
        self._stage.step(row, state.global_step - self._shown)
        self._shown = state.global_step


def silence(trainer: Trainer) -> None:
    """Take away the trainer's own printing: `Recorder` is its voice."""
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)


def silence_libraries() -> None:
    """No progress bars of theirs for what takes a second: they break ours."""
    from datasets import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()
