"""Reinforcement learning with verified rewards, by TRL under one of trustclip's methods.

Three calls: `check` refuses settings that cannot work, `prepare` loads what training needs and
refuses what does not fit, `train` trains and saves. Settings are read in the first two only.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NewType

from rich.console import Console

from trustclip.findings.live.first import FirstCompletions
from trustclip.findings.live.recorder import notifier, outcome, token_sampler
from trustclip.logs.writing.completions import Completions, Notice
from trustclip.support.consent import names_in
from trustclip.support.jsonl import plain
from trustclip.support.lock import world
from trustclip.support.terminal import announce
from trustclip.train import sft
from trustclip.train.card import conclude
from trustclip.train.checks import refuse
from trustclip.train.configs import grpo_config, lora_config
from trustclip.train.data import (
    check_data,
    data_table,
    enough,
    overlap_text,
    short_enough,
    show,
    tell_overlap,
    training_data,
    unlike,
)
from trustclip.train.durable.ranks import Interrupted, by_first
from trustclip.train.evaluation.evaluate import Evaluation
from trustclip.train.inputs import compare
from trustclip.train.models import check_context, load_model, model_config, save_model
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import record
from trustclip.train.rewarding import Rewards, keep_code
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run
from trustclip.train.runs.progress import Stage
from trustclip.train.services import await_server
from trustclip.train.settings.stages import RLSettings
from trustclip.train.tiny import BUILT_IN
from trustclip.train.watch.callbacks import (
    Checkups,
    FirstGeneration,
    Recorder,
    tell_trackers,
    trackers_open,
)
from trustclip.train.watch.guards import Guards


def rl(settings: RLSettings, console: Console) -> RunDirectory:
    """Run `trustclip rl`: load, train, save to ``final/``; resumes an unfinished run.

    Raises:
      ValueError: a method, schedule, model, data set or run directory that cannot be used, or
        another process uses the run directory.
    """
    plan = check(settings)
    with open_run("rl", settings, console) as (run, finished):
        if not finished:
            with prepare(plan, run, console) as prepared:
                train(prepared, run, console)
            console.print(f"model in {run.final}", highlight=False)
    return run


#: Settings without a fault that shows before data are read; `check` alone makes them of others.
Plan = NewType("Plan", RLSettings)


def check(settings: RLSettings) -> Plan:
    """Refuse settings that would fail, or silently have no effect, with all reasons at once."""
    refuse(settings)
    return Plan(settings)


@dataclass(frozen=True, kw_only=True)
class Prepared(sft.Prepared):
    """What reinforcement learning needs; its table has the prompts that are short enough."""

    problems: Mapping[str | None, Sequence[Problem]]  # by task; None for those to train on
    tokens: tuple[int, int, float]  # what `token_sampler` records
    rewards: Rewards
    code: frozenset[str]  # names in Python files of the user's own
    evaluation: Evaluation | None = None  # before, during and after training


@contextlib.contextmanager
def prepare(plan: Plan, run: RunDirectory, console: Console) -> Iterator[Prepared]:
    """Load problems, rewards and model, and refuse what does not fit: data before the model.

    What the rewards hold is released at the end of the ``with``.
    """
    problems, overlap = training_data(plan, run)
    tell_overlap(console, overlap)
    enough(problems, plan)
    check_data(problems, plan)
    by_first(lambda: compare(run, plan, {"`dataset`": problems}))
    show(console, unlike(plan.model, plan.style))
    announce(
        console,
        f"rl: {plan.method.name} on {plan.model} in {plan.output_dir}; {len(problems)} problems; "
        f"{plan.max_steps} updates, {plan.schedule.updates_per_generation:g} with each generation "
        f"of {plan.samples * world()} completions, {plan.num_generations} of each problem",
    )
    with ready(plan, problems, run, console) as prepared:
        counts = {"problems": len(prepared.table), "overlap": overlap, "prompt": prepared.prompt}
        yield replace(prepared, facts={"command": "rl", **counts})


@contextlib.contextmanager
def ready(
    settings: RLSettings,
    problems: Sequence[Problem],
    run: RunDirectory,
    console: Console,
    tuned: Callable[[], str] | None = None,
) -> Iterator[Prepared]:
    """All that training on these problems needs: first what can fail at once, then the model.

    ``tuned`` makes the model to start from, if that is not the one of the settings.

    Raises:
      ValueError: a vLLM server that does not answer, a reward that cannot be made, or what
        the model shows to be wrong.
    """
    check_context(model_config(settings.model), settings.max_completion_length, settings.model)
    await_server(settings, console)
    code = names_in(plain(settings))
    with contextlib.closing(Rewards(settings, settings.seed)) as rewards:
        if tuned is not None:
            settings = replace(settings, model=tuned())
        model, tokenizer = starting_model(settings, run, console)
        short = short_enough(problems, tokenizer, settings)
        yield Prepared(
            model=model,
            tokenizer=tokenizer,
            problems={None: problems},
            table=data_table(short, settings.style),
            prompt=record(settings.style, tokenizer, short[0].problem),
            adapters=lora_config(settings.lora_r, settings.lora_alpha, settings.lora),
            config=grpo_config(settings, run.checkpoints, settings.seed),
            tokens=(settings.tokens_every, settings.tokens_completions, settings.tokens_megabytes),
            saved=settings.save,
            rewards=rewards,
            code=code,
        )


def starting_model(settings: RLSettings, run: RunDirectory, console: Console) -> tuple[Any, Any]:
    """The model that training starts from; a built-in one is made and primed, in ``sft/``.

    Raises:
      Interrupted: a stop was requested while priming; the same call continues.
    """
    name = settings.model
    if name in BUILT_IN:
        name = str(sft.prime(run.path / "sft", settings, console))
    else:
        announce(console, f"loading {name}")
    return load_model(name, settings.style, dtype=settings.dtype)


def train(prepared: Prepared, run: RunDirectory, console: Console) -> None:
    """Train on verified rewards, from the newest checkpoint if there is one, and save the model.

    Raises:
      Interrupted: SIGTERM or Ctrl-C stopped it; everything is saved, and the same call continues.
      ValueError: there was no update to make.
    """
    for task, problems in prepared.problems.items():
        run.problems(problems, task)
    run.start_over()
    keep_code(run, prepared.code)
    trainer = _trainer(prepared, run)
    run.listener = partial(tell_trackers, trainer)
    guards = Guards(notifier(run, console))
    trainer.recorder = RunRecorder(run, prepared.rewards, guards.report)
    config, evaluation = prepared.config, prepared.evaluation
    announce(console, "sampling the first completions")
    with trackers_open(trainer):
        with Stage(console, "rl") as stage:
            trainer.add_callback(Recorder(run, stage, "rl"))
            trainer.add_callback(FirstGeneration(console, config.max_completion_length))
            trainer.add_callback(guards)
            trainer.add_callback(FirstCompletions(run, console, trainer))
            if evaluation is not None:
                trainer.add_callback(Checkups(evaluation.every, evaluation, trainer))
            complete = trainer.train_durably()
        if not complete:
            raise Interrupted
        if not trainer.state.global_step:
            raise ValueError("training made no update: the model is unchanged and was not saved.")
        if evaluation is not None:
            evaluation(trainer)
    metrics = {"training": outcome(trainer.state.log_history), **guards.summary()}
    save_model(trainer.model, prepared.tokenizer, run.final, prepared.prompt, prepared.saved)
    course = evaluation.course if evaluation else dict  # read on the first rank alone
    facts = {**prepared.facts, **metrics, "finished": True}
    copies = overlap_text(facts["overlap"])
    by_first(lambda: conclude(run, trainer, {**facts, **course()}, copies))


def _trainer(prepared: Prepared, run: RunDirectory) -> Any:
    """The trainer, which keeps its checkpoints and the tokens that it records in the run."""
    from trustclip.train.trainers import DurableGRPOTrainer

    rewards = prepared.rewards.functions
    trainer = prepared.trainer(DurableGRPOTrainer, run, reward_funcs=rewards)
    if prepared.tokens[0]:
        updates = prepared.config.max_steps
        trainer.token_sampler = token_sampler(trainer, prepared.tokens, updates, run)
    if prepared.adapters and trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        raise ValueError("FSDP 1 has no adapters to save at the end: set `fsdp_version: 2`.")
    return trainer


class RunRecorder(Completions):
    """Writes completions with the rewards of a recipe.

    ``samples.jsonl`` has the total, the value of each where there are several, the true ones where
    the binary reward is inverted, and in a noisy training ``turned``, whether it was.
    """

    def __init__(self, run: RunDirectory, rewards: Rewards, notice: Notice | None = None) -> None:
        super().__init__(run, notice)
        self._rewards = rewards

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
            **({"turned": inverted} if self._rewards.noisy else {}),
        }
