"""Supervised fine-tuning on worked solutions, by TRL's `SFTTrainer`.

In the three steps of `trustclip.train.rl`: settings are checked, `prepare` makes of them what
training needs, `train` trains.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.support.terminal import announce
from trustclip.train.card import conclude
from trustclip.train.checks import refuse
from trustclip.train.configs import lora_config, sft_config
from trustclip.train.data import show, tell_overlap, training_data, unlike
from trustclip.train.durable.ranks import Interrupted, by_first
from trustclip.train.files import Source, build, preset
from trustclip.train.inputs import compare
from trustclip.train.models import load_model, save_model
from trustclip.train.problems.hub import hub_source, named_after
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import completion, messages, record, tokens_of
from trustclip.train.problems.rows import is_numeric
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import RLSettings, Saved, SFTSettings
from trustclip.train.watch.callbacks import Recorder, silence


def sft(
    settings: SFTSettings,
    console: Console,
    problems: Sequence[Problem] | None = None,
    *,
    part: bool = False,
) -> RunDirectory:
    """Run `trustclip sft`: load, train, save to ``final/``; resumes an unfinished run.

    Without ``problems``, which have solutions, those of ``settings.dataset`` are learned from.

    Returns:
      The run; its summary is not ``finished`` when SIGTERM or Ctrl-C stopped it: everything is
      saved, and the same call continues.

    Raises:
      ValueError: a model, data set or run directory that cannot be used, or another process uses
        the run directory.
      Interrupted: it was stopped as ``part`` of another command, which says so itself.
    """
    refuse(settings)
    with open_run("sft", settings, console, part=part) as (run, finished):
        if not finished:
            train(prepare(settings, run, console, problems), run, console)
    return run


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a training needs, all of it made and checked."""

    model: Any
    tokenizer: Any
    table: Any  # the trainer's data set
    prompt: dict[str, Any]  # what `record` says of a row of it
    adapters: Any  # PEFT's; None to train all weights
    config: Any  # TRL's
    saved: Saved
    facts: dict[str, Any] = field(default_factory=dict)  # known before training, for the summary

    def trainer(self, kind: type, run: RunDirectory, **more: Any) -> Any:
        """The trainer, which keeps its checkpoints in the run and prints nothing itself."""
        trainer: Any = kind(
            model=self.model,
            args=self.config,
            train_dataset=self.table,
            processing_class=self.tokenizer,
            peft_config=self.adapters,
            **more,
        )
        trainer.journal = run
        silence(trainer)
        return trainer


def prepare(
    settings: SFTSettings,
    run: RunDirectory,
    console: Console,
    problems: Sequence[Problem] | None = None,
) -> Prepared:
    """Load solutions and model, and refuse what does not fit."""
    from datasets import Dataset

    facts: dict[str, Any] = {"command": "sft"}
    if problems is None:
        problems, facts["overlap"] = training_data(settings, run)
        tell_overlap(console, facts["overlap"])
        announce(console, f"sft: {settings.model} on {len(problems)} solutions, in {run.path}")
    solved = {"`dataset`": problems}
    by_first(lambda: compare(run, settings, solved))
    show(console, unlike(settings.model, settings.style))
    model, tokenizer = load_model(settings.model, settings.style, settings.seed, settings.dtype)
    problems = format_examples(problems, tokenizer, settings)
    rows = [
        {
            "prompt": messages(problem.problem, settings.style),
            "completion": [{"role": "assistant", "content": completion(problem, settings.style)}],
        }
        for problem in problems
    ]
    return Prepared(
        model=model,
        tokenizer=tokenizer,
        table=Dataset.from_list(rows),
        prompt=record(settings.style, tokenizer, problems[0].problem),
        adapters=lora_config(settings.lora_r, settings.lora_alpha, settings.lora),
        config=sft_config(settings, run.checkpoints),
        saved=settings.save,
        facts={**facts, "problems": len(problems)},
    )


def format_examples(
    problems: Sequence[Problem], tokenizer: Any, settings: SFTSettings
) -> Sequence[Problem]:
    """Select the problems to learn a format from.

    Of a set of reasoning traces (OpenMathReasoning, or a file named after it) only those with a
    numeric answer, and whose tokens, chat template included, take at most half of ``max_length``,
    as in the Unsloth Qwen3 GRPO notebook; ``<think>`` tags go, the thoughts between them stay. Of
    any other set all. Then the first ``limit``.
    """
    source = named_after(Path(settings.dataset).stem) or hub_source(settings.dataset)
    if source is not None and source.kind == "sft":
        untagged = [
            replace(one, solution=re.sub("</?think>", "", one.solution).strip())
            for one in problems
            if one.solution and is_numeric(one.answer)
        ]
        problems = [
            one
            for one in untagged
            if 2 * tokens_of(tokenizer, one, settings.style, solved=True) <= settings.max_length
        ]
    if not problems:
        raise ValueError(
            f"{settings.dataset}: no solution with a numeric answer fits into half of max_length "
            f"= {settings.max_length} tokens."
        )
    return problems[: settings.limit]


def train(prepared: Prepared, run: RunDirectory, console: Console) -> None:
    """Train on the solutions, from the newest checkpoint if there is one, and save the model.

    Raises:
      Interrupted: SIGTERM or Ctrl-C stopped it; everything is saved, and the same call continues.
    """
    from trustclip.train.trainers import DurableSFTTrainer

    run.start_over()
    trainer = prepared.trainer(DurableSFTTrainer, run)
    with Stage(console, "sft") as stage:
        trainer.add_callback(Recorder(run, stage, "sft"))
        if not trainer.train_durably():
            raise Interrupted
    save_model(trainer.model, prepared.tokenizer, run.final, prepared.prompt, prepared.saved)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    last = {name: lines[-1][name] for name in ("loss", "mean_token_accuracy") if lines}
    by_first(lambda: conclude(run, trainer, {**prepared.facts, "finished": True, **last}))
    console.print(f"model in {run.final}", highlight=False)


def prime(folder: Path, started: RLSettings, console: Console) -> Path:
    """Make a built-in model and teach it the answer format, from mostly terse and wrong solutions.

    A finished run in ``folder`` is reused. The reinforcement learning ``started`` it, and begins
    from what 60 updates of 32 solutions leave.

    Raises:
      Interrupted: a stop was requested meanwhile; the same call continues.
    """
    place = {name: getattr(started, name) for name in ("model", "seed", "changed_inputs")}
    changes = {**place, "output_dir": folder, "max_steps": 60}
    settings = build(SFTSettings, preset("sft", "tiny"), Source(changes=changes))
    return sft(settings, console, part=True).final
