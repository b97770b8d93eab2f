"""The first completions of a training: sampler and trainer, compared before the first update."""

from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from trustclip.constraints.sampler import Pairs
from trustclip.engines.trl.scoring.floor import with_floor
from trustclip.findings.facts import FEWEST_TOKENS
from trustclip.findings.finding import Finding
from trustclip.findings.mismatch.agreement import compare, too_tight
from trustclip.logs.writing.run import RunWriter


class FirstCompletions(TrainerCallback):
    """Compares sampler and trainer before the first update of a run, and records the verdict.

    A row of ``metrics.jsonl`` with ``"stage": "sampler"`` holds it; one that is not harmless is a
    notice as well, and is printed. A run that resumes after an update is not compared again.
    The trainer is one that records (`trustclip.engines.trl.recording.records.Recorded`).
    """

    def __init__(self, run: RunWriter, console: Console, trainer: Any) -> None:
        self._run, self._console, self._trainer = run, console, trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen, unless an update has been made: the first one is judged, or had few tokens."""
        if self._run.leads and state.global_step == 0:
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
        row = {"cause": verdict.name, "harmless": not verdict.troubles, "text": verdict.sentence}
        self._run.log({"stage": "sampler", "step": 0, **row})
        if verdict.troubles:
            self._say("sampler_mismatch", verdict)
        if pairs.floor and (
            tight := too_tight(trainer.method, pairs, trainer.max_completion_length)
        ):
            self._say("bound_in_noise", tight)

    def _say(self, notice: str, finding: Finding) -> None:
        """Record a finding as a notice, and print it."""
        self._run.notice(0, notice, finding.sentence)
        self._console.print(f"{finding.subject}: {finding.sentence}", highlight=False, markup=False)
