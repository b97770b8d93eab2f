"""Callbacks of a Hugging Face trainer: records, evaluations during training, silence."""

from collections.abc import Callable
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from trustclip.findings.start import of_generation
from trustclip.support.terminal import warn
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage
from trustclip.train.watch.sinks import Sink


class Recorder(TrainerCallback):
    """Writes every log line of a trainer to ``metrics.jsonl`` and a sink, and shows it."""

    def __init__(self, run: RunDirectory, stage: Stage, name: str, sink: Sink | None = None):
        self._run, self._stage, self._name, self._sink = run, stage, name, sink

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last = state.global_step
        self._stage.resume(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or "train_runtime" in (logs or {}):
            return
        row = {"stage": self._name, "step": state.global_step, **(logs or {})}
        self._run.log(row)
        if self._sink is not None:
            self._sink.log(row)
        self._stage.step(row, state.global_step - self._last)
        self._last = state.global_step


class FirstGeneration(TrainerCallback):
    """Says after the first generation of a run why it cannot learn from such completions."""

    def __init__(self, console: Any, limit: int) -> None:
        self._console, self._limit, self._done = console, limit, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._done = state.global_step > 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._done or not state.is_world_process_zero or "loss" not in (logs or {}):
            return
        self._done = True
        for finding in of_generation({"step": state.global_step, **logs}, self._limit):
            warn(self._console, f"warning at update {finding.evidence['step']}: {finding.text}")


class Checkups(TrainerCallback):
    """Evaluations before, after and every so many updates of a training run; 0 for no others.

    Each comes after a checkpoint of its step, so that an interruption costs no update.
    """

    def __init__(self, every: int, evaluate: Callable[[Any], None], trainer: Any) -> None:
        self._every, self._evaluate, self._trainer = every, evaluate, trainer

    def _due(self, state: Any) -> bool:
        step = state.global_step
        return step in (0, state.max_steps) or (self._every > 0 and step % self._every == 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._due(state):
            control.should_save = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # At the beginning of a step, the previous checkpoint has been written, or loaded.
        if self._due(state):
            self._evaluate(self._trainer)


def silence(trainer: Trainer) -> None:
    """Turn off the trainer's own printing: `Recorder` replaces it."""
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)


def silence_libraries() -> None:
    """Turn off the libraries' progress bars: they break up the live progress line."""
    from datasets import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()
