"""Running a whole recipe: fine-tune, evaluate, train with evaluations, save, score."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from trustclip.findings.run import of_run
from trustclip.logs.reader import read_run
from trustclip.support.lock import only_process
from trustclip.support.terminal import announce, print_table, warn
from trustclip.support.text import interval_text, plural
from trustclip.train.checks import absent
from trustclip.train.data import (
    data_table,
    differences,
    few_tests,
    recipe_problems,
    short_enough,
    show,
    tell_overlap,
    unlike,
)
from trustclip.train.durable.ranks import by_first
from trustclip.train.evaluation.evaluate import Evaluation, scores_table
from trustclip.train.files import demo_recipe
from trustclip.train.inputs import compare
from trustclip.train.models import load_tokenizer
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import record
from trustclip.train.rl import Prepared, ready, train
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.runs.opening import open_run
from trustclip.train.settings.stages import DemoSettings, Recipe
from trustclip.train.sft import sft


def run_recipe(recipe: Recipe, console: Console) -> RunDirectory:
    """Run a recipe, or what is left of it as recorded in its run directory.

    Raises:
      ValueError: the folder holds another run, another process uses it, or a model, data set or
        package, login or server is missing.
    """
    if missing := [*absent(recipe.rl)]:  # now, not after hours of fine-tuning
        raise ValueError("\n".join(missing))
    with open_run("run", recipe, console) as (run, finished):
        if not finished:
            with prepare(recipe, run, console) as prepared:
                train(prepared, run, console)
            _report(run, console)
    return run


@contextlib.contextmanager
def prepare(recipe: Recipe, run: RunDirectory, console: Console) -> Iterator[Prepared]:
    """Load all problems, fine-tune, and prepare the reinforcement learning and its evaluations."""
    data = recipe_problems(recipe, run)
    named = {"`rl.dataset`": data.training, "`sft.dataset`": data.tuning}
    named |= {f"`eval.tasks` {task}": problems for task, problems in data.tests.items()}
    by_first(lambda: compare(run, recipe, {name: rows for name, rows in named.items() if rows}))
    show(console, differences(recipe))
    show(console, unlike(recipe.model, (recipe.sft or recipe.rl).style))
    tell_overlap(console, data.overlap)
    show(console, few_tests(data.tests))
    tests = sum(map(len, data.tests.values()))
    stages = [
        *([f"fine-tuning on {len(data.tuning)} solutions"] if recipe.sft else []),
        f"{recipe.rl.method.name} on {len(data.training)} problems",
        *([f"evaluations on {tests}"] if tests else []),
    ]
    announce(console, f"{recipe.name}: {', '.join(stages)}; from {recipe.model}, in {run.path}")
    if recipe.sft is not None and not (run.path / "sft" / "final").exists():
        _refuse_before_tuning(recipe, data.training)
    evaluation = None
    if recipe.eval is not None:
        evaluation = Evaluation(recipe.eval, recipe.seed, data.tests, run, console)
    tuning = recipe.tuning

    def tuned() -> str:
        return str(sft(tuning, console, data.tuning, part=True).final) if tuning else recipe.model

    with ready(recipe.training, data.training, run, console, tuned) as prepared:
        facts = {
            "command": "run",
            "name": recipe.name,
            "model": recipe.model,
            "seed": recipe.seed,
            "method": recipe.rl.method.to_dict(),
            "overlap": data.overlap,
            "prompt": prepared.prompt,
        }
        if recipe.eval is not None and recipe.eval.style.asked != recipe.rl.style.asked:
            facts["eval_prompt"] = record(recipe.eval.style, prepared.tokenizer)
        run.summarize({**facts, "finished": False})
        problems = {None: data.training, **data.tests}
        yield replace(prepared, problems=problems, facts=facts, evaluation=evaluation)


def _refuse_before_tuning(recipe: Recipe, problems: Sequence[Problem]) -> None:
    """Raise now, rather than after the fine-tuning, what reinforcement learning would refuse."""
    data_table(problems, recipe.rl.style)
    if recipe.rl.max_prompt_length is not None:
        style = (recipe.sft or recipe.rl).style
        short_enough(problems, load_tokenizer(recipe.model, style), recipe.rl)


def _report(run: RunDirectory, console: Console) -> None:
    summary = run.summary
    if "final" in summary:
        for name, stage in (("before", "initial"), ("after", "final")):
            print_table(console, scores_table(summary[stage], name))
        gain = interval_text(summary["difference"])
        console.print(f"gain, paired by problem: {gain} points", highlight=False)
        conclude_scores(run.path, console)
    if notices := summary.get("notices"):
        text = f"{plural(len(notices), 'warning')} during training: trustclip explain {run.path}"
        warn(console, text)
    console.print(f"model in {run.final}", highlight=False)


def conclude_scores(folder: Path, console: Console) -> None:
    """Say at the end of a run what its gate did, and whether its score fell."""
    for finding in of_run(read_run(folder)):
        if finding.subject in ("gate", "scores") and finding.troubles:
            warn(console, finding.sentence)
        elif finding.kind == "gate/acted":
            announce(console, finding.sentence)


#: What each model of a demo is.
_POLICIES = {
    "tiny": "a tiny policy, made here and at first untrained,",
    "smollm2": "SmolLM2-135M-Instruct, a pretrained language model,",
}


def demo(settings: DemoSettings, console: Console) -> RunDirectory:
    """Run `trustclip demo`: prime, evaluate, reinforce, evaluate."""
    # A model this small gains nothing from threads, and their number would change the numbers.
    torch.set_num_threads(1)
    method = settings.method
    model = "" if settings.model == "tiny" else f"{settings.model}-"
    default = Path(f"runs/demo-{model}{method.name}-seed{settings.seed}")
    folder = settings.output_dir or Path(by_first(lambda: str(_free_folder(default, settings))))
    announce(console, f"{_POLICIES[settings.model]} learns sums under {method.name}, in {folder}")
    run = run_recipe(demo_recipe(settings, folder), console)
    for command, note in (("explain", "what the gate did"), ("report", "a page with figures")):
        announce(console, f"next: trustclip {command} {folder}   # {note}")
    return run


def _free_folder(path: Path, settings: DemoSettings) -> Path:
    """The first of ``path``, ``path-2``, ... that is free, or holds this very demo, unfinished."""
    number, candidate = 1, path
    while candidate.exists() and not _is_stopped(candidate, settings):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _is_stopped(folder: Path, settings: DemoSettings) -> bool:
    try:
        with only_process(folder):
            return RunDirectory.stopped(folder, "run", demo_recipe(settings, folder))
    except (ValueError, OSError):  # in use, damaged, or no folder of a run
        return False
