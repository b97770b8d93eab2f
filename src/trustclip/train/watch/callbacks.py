"""Callbacks of a Hugging Face trainer: records, evaluations during training, trackers, silence."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from trustclip.findings.start import of_generation
from trustclip.support.terminal import warn
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage


class Recorder(TrainerCallback):
    """Writes every log line of an update to ``metrics.jsonl``, and shows it."""

    def __init__(self, run: RunDirectory, stage: Stage, name: str) -> None:
        self._run, self._stage, self._name = run, stage, name

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last = state.global_step
        self._stage.resume(state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or "loss" not in (logs or {}):
            return
        row = {"stage": self._name, "step": state.global_step, **logs}
        self._run.log(row)
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
            warn(self._console, f"warning at update {finding.step}: {finding.text}")


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


@contextlib.contextmanager
def trackers_open(trainer: Trainer) -> Iterator[None]:
    """Keep a trainer's experiment trackers open: they would close before the last evaluation."""
    kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
    trackers: list[Any] = [c for c in trainer.callback_handler.callbacks if isinstance(c, kinds)]
    ends = [tracker.on_train_end for tracker in trackers]
    for tracker in trackers:
        tracker.on_train_end = lambda *_, **__: None
    try:
        yield
    finally:
        for end in ends:
            end(trainer.args, trainer.state, trainer.control, model=trainer.model)


def tell_trackers(trainer: Trainer, row: Mapping[str, Any]) -> None:
    """Hand a row of ``metrics.jsonl`` to a trainer's trackers: an evaluation or a notice.

    They come as from `Trainer.log`, which TRL's trainers use to close a window of their averages.
    """
    if row["stage"] == "notice":
        numbers = {f"notice/{row['notice']}": 1.0}
    elif row["stage"] == "eval":
        numbers = {
            f"eval_{row['task']}/{name.replace('@', '-at-')}": value  # MLflow takes no @
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float)
        }
    else:
        return
    trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, numbers)


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
