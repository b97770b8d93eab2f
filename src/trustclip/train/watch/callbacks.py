"""Callbacks of a Hugging Face trainer: records, evaluations during training, silence."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from trustclip.constraints.sampler import Pairs
from trustclip.findings.facts import FEWEST_TOKENS
from trustclip.findings.mismatch.agreement import compare
from trustclip.findings.mismatch.damage import too_tight
from trustclip.findings.start import of_generation
from trustclip.support.terminal import warn
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage
from trustclip.train.watch.floor import with_floor
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


class FirstCompletions(TrainerCallback):
    """Compares sampler and trainer before the first update of a run, and records the verdict.

    A row of ``metrics.jsonl`` with ``"stage": "sampler"`` holds it; one that is not harmless is a
    notice as well, and is printed. A resumed run whose rows hold a verdict is not compared again.
    The trainer is one that records (`trustclip.engines.trl.recording.records.Recorded`).
    """

    def __init__(self, run: RunDirectory, console: Console, trainer: Any) -> None:
        self._run, self._console, self._trainer = run, console, trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen, unless the rows that this training goes on from hold a verdict."""
        if self._run.leads and not any(row.get("stage") == "sampler" for row in self._run.logged()):
            self._trainer.mismatch.listener = self

    def __call__(self, pairs: Pairs) -> None:
        """Compare the tokens of the first update, if there are enough of them."""
        if len(pairs.trainer) < FEWEST_TOKENS:
            return
        trainer = self._trainer
        # The noise floor takes a process that holds the whole model.
        if pairs.sequences is not None and trainer.accelerator.distributed_type == "NO":
            model = trainer.accelerator.unwrap_model(trainer.model)
            pairs = with_floor(pairs, model, trainer.temperature)
        verdict = compare(pairs)
        row = {"cause": verdict.cause, "harmless": verdict.harmless, "text": verdict.text}
        self._run.log({"stage": "sampler", "step": 0, **row})
        if not verdict.harmless:
            self._run.notice(0, "sampler_mismatch", verdict.text)
            self._console.print(f"sampler: {verdict.text}", highlight=False, markup=False)
        if pairs.floor and (
            text := too_tight(trainer.method, pairs, trainer.max_completion_length)
        ):
            self._run.notice(0, "bound_in_noise", text)
            self._console.print(f"gate: {text}", highlight=False, markup=False)
