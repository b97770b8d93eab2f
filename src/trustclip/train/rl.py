"""Reinforcement learning with verified rewards, by TRL under one of trustclip's methods."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from trustclip.support.terminal import announce
from trustclip.train.checks import refuse, schedule_of
from trustclip.train.data import (
    enough,
    exclude_tests,
    further_tests,
    overlap_text,
    record,
    show,
    training_problems,
    unlike,
)
from trustclip.train.durable.ranks import by_first
from trustclip.train.durable.rollcall import Interrupted
from trustclip.train.equipment import Equipment, open_run
from trustclip.train.grpo import grpo_config
from trustclip.train.models import load_model, lora_config, save_model
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import PromptStyle, tokens_of
from trustclip.train.rewarding import Rewards, check_data, keep_code, training_row
from trustclip.train.runs.card import conclude
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.progress import Stage
from trustclip.train.settings.stages import Place, RLSettings, RLStage
from trustclip.train.tiny import BUILT_IN
from trustclip.train.watch.callbacks import (
    Checkups,
    FirstCompletions,
    FirstGeneration,
    Recorder,
    silence,
)
from trustclip.train.watch.completions import Completions
from trustclip.train.watch.guards import Guards, Notice
from trustclip.train.watch.recorder import notifier, outcome, token_sampler


def rl(settings: RLSettings, console: Console) -> RunDirectory:
    """Run `trustclip rl`: load, train, save to ``final/``; resumes an unfinished run.

    Raises:
      ValueError: a method, schedule, model, data set or run directory that cannot be used, or
        another process uses the run directory.
    """
    refuse(settings)
    with open_run("rl", settings, console) as (run, finished):
        try:
            if not finished:
                _rl(settings, run, console)
        except Interrupted:
            console.print(f"stopped; the same command continues {run.path}.", highlight=False)
        return run


def _rl(settings: RLSettings, run: RunDirectory, console: Console) -> None:
    loaded = training_problems(settings, run, settings.seed)
    problems, overlap = exclude_tests(loaded, further_tests(settings, run), settings)
    for line in overlap_text({"rl": overlap}):
        console.print(line, highlight=False, markup=False)
    enough(problems, settings)
    check_data(problems, settings)
    run.problems(problems)
    show(console, unlike(settings.model, settings.style))
    announce(console, opening(settings, len(problems)))
    with Equipment(settings, settings, run, console) as equipment:
        model, tokenizer = starting_model(settings, settings.style, run, console)
        problems = short_enough(problems, tokenizer, settings)
        trainer, metrics = reinforce(model, tokenizer, problems, settings, equipment)
    prompt = record(settings.style, tokenizer, problems[0].problem)
    save_model(trainer.model, tokenizer, run.final, prompt, settings.save)
    counts = {"problems": len(problems), "overlap": {"rl": overlap}, "prompt": prompt}
    summary = {"command": "rl", **counts, "finished": True, **metrics}
    by_first(lambda: conclude(run, summary))
    console.print(f"model in {run.final}", highlight=False)


def opening(settings: RLSettings, problems: int) -> str:
    """The training that is about to start, in one line.

    Example:
      >>> from pathlib import Path
      >>> opening(RLSettings(model="tiny", dataset="a.csv", output_dir=Path("runs/a")), 64)
      'rl: atr on tiny in runs/a; 64 problems; 1000 updates, 2 with each generation of 32 \
completions, 8 of each problem'
    """
    schedule = schedule_of(settings)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    size = settings.per_device_train_batch_size * schedule.steps_per_generation * ranks
    return (
        f"rl: {settings.method.name} on {settings.model} in {settings.output_dir}; {problems} "
        f"problems; {settings.max_steps} updates, {schedule.updates_per_generation:g} with each "
        f"generation of {size} completions, {settings.num_generations} of each problem"
    )


def starting_model(
    place: Place, style: PromptStyle, run: RunDirectory, console: Console
) -> tuple[Any, Any]:
    """The model that training starts from; a built-in one is made and primed, in ``sft/``.

    Raises:
      Interrupted: a stop was requested while priming; the same call continues.
    """
    if place.model not in BUILT_IN:
        announce(console, f"loading {place.model}")
        return load_model(place.model, style, place.seed, place.dtype)
    from trustclip.train.sft import prime

    folder = prime(run.path / "sft", place.model, place.seed, console)
    return load_model(str(folder), style, dtype=place.dtype)


def reinforce(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLStage,
    equipment: Equipment,
    checkups: Checkups | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Train ``model`` in place on verified rewards, from the newest checkpoint if there is one.

    Returns:
      The trainer, and what ``summary.json`` says of the training.

    Raises:
      Interrupted: SIGTERM or Ctrl-C stopped it; everything is saved, and the same call continues.
    """
    run, console, rewards = equipment.run, equipment.console, equipment.rewards
    run.start_over()
    keep_code(run, settings)
    trainer = _trainer(model, tokenizer, problems, settings, equipment)
    guards = Guards(notifier(run, console))
    trainer.recorder = RunRecorder(run, rewards, settings.reward_noise > 0, guards.report)
    announce(console, "sampling the first completions")
    with Stage(console, "rl", settings.max_steps) as stage:
        trainer.add_callback(Recorder(run, stage, "rl", equipment.sink))
        trainer.add_callback(FirstGeneration(console, settings.max_completion_length))
        trainer.add_callback(guards)
        trainer.add_callback(FirstCompletions(run, console, trainer))
        if checkups is not None:
            checkups.trainer = trainer
            trainer.add_callback(checkups)
        complete = trainer.train_durably()
    if complete and not trainer.state.global_step:
        raise ValueError("training made no update: the model is unchanged and was not saved.")
    if not complete:
        raise Interrupted
    return trainer, {"training": outcome(trainer.state.log_history), **guards.summary()}


def _trainer(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    settings: RLStage,
    equipment: Equipment,
) -> Any:
    from trustclip.train.trainers import DurableGRPOTrainer

    run = equipment.run
    trainer = DurableGRPOTrainer(
        model=model,
        reward_funcs=equipment.rewards.functions,
        args=grpo_config(settings, run.checkpoints, equipment.seed),
        train_dataset=data_table(problems, settings),
        processing_class=tokenizer,
        peft_config=lora_config(settings.lora_r, settings.lora_alpha, settings.lora),
    )
    trainer.journal = run
    if settings.tokens_every:
        budget = settings.tokens_every, settings.tokens_completions, settings.tokens_megabytes
        trainer.token_sampler = token_sampler(trainer, budget, settings.max_steps, run)
    silence(trainer)
    if settings.lora_r and trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        raise ValueError("FSDP 1 has no adapters to save at the end: set `fsdp_version: 2`.")
    return trainer


def data_table(problems: Sequence[Problem], settings: RLStage) -> Any:
    """The trainer's data set."""
    return _table([training_row(problem, settings.style) for problem in problems])


def _table(rows: list[dict[str, Any]]) -> Any:
    """A data set of these rows; an error names the column with values of several types."""
    from datasets import Dataset
    from pyarrow import ArrowException

    try:
        return Dataset.from_list(rows)
    except (ArrowException, TypeError, OverflowError) as error:
        for name in rows[0]:
            kinds = sorted({type(row.get(name)).__name__ for row in rows} - {"NoneType"})
            if len(kinds) > 1:
                raise ValueError(
                    f"the column {name!r} of the data holds several types ({', '.join(kinds)}): "
                    "convert it to one, for example to text."
                ) from error
        raise ValueError(f"the data's columns do not fit into a table: {error}") from error


class RunRecorder(Completions):
    """Writes completions with the rewards of a recipe.

    ``samples.jsonl`` has the total, the value of each where there are several, the true ones where
    the binary reward is inverted, and in a ``noisy`` training ``turned``, whether it was.
    """

    def __init__(
        self, run: RunDirectory, rewards: Rewards, noisy: bool, notice: Notice | None = None
    ) -> None:
        super().__init__(run, notice)
        self._rewards, self._noisy = rewards, noisy

    def _reward_row(self, generation: Any, place: int, row: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: generation.rewards[name][place] for name in self._rewards.names}
        index, binary = generation.index[place], self._rewards.correct
        inverted = binary is not None and binary.inverts(generation.step, index, row["id"])
        if binary is not None and inverted:
            # The true reward: inverting an inverted binary reward restores it.
            values[binary.__name__] = 1.0 - values[binary.__name__]
        return {
            "reward": self._rewards.total(values),
            **({"rewards": values} if len(values) > 1 else {}),
            **({"turned": inverted} if self._noisy else {}),
        }


def short_enough(
    problems: Sequence[Problem], tokenizer: Any, settings: RLStage
) -> Sequence[Problem]:
    """The problems with prompts of at most ``max_prompt_length`` tokens, if they are enough."""
    limit, style = settings.max_prompt_length, settings.style
    if limit is None:
        return problems
    short = [problem for problem in problems if tokens_of(tokenizer, problem, style) <= limit]
    if not short:
        raise ValueError(f"no problem has a prompt of at most max_prompt_length = {limit} tokens.")
    enough(short, settings)
    return short
