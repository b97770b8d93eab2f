"""Problems for a recipe, generated or from a source, with training and test problems disjoint."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.support.terminal import warn
from trustclip.train.problems.alike import Tokens, tokenize
from trustclip.train.problems.arithmetic import Arithmetic
from trustclip.train.problems.decontaminate import decontaminate
from trustclip.train.problems.files import stem_of
from trustclip.train.problems.generated import GENERATED, PRIMER
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import PromptStyle, rendered
from trustclip.train.problems.sources import RowSelection, load_problems, load_task
from trustclip.train.problems.verify.chosen import check_columns, read_rewards
from trustclip.train.rewarding import check_data, columns_of, has_own, needs_answers
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import (
    NOTHING,
    OWN_TESTS,
    EvalStage,
    Recipe,
    RLStage,
    Training,
    source_of,
)

#: Number of generated problems when no limit is set.
MANY = 1024
#: The same for fine-tuning on a mixture of terse and worked solutions.
PRIMER_SIZE = 2560


@dataclass(frozen=True)
class RecipeData:
    """All problems of a recipe, training and test problems apart."""

    tuning: list[Problem]  # with solutions; empty without fine-tuning
    training: list[Problem]
    tests: dict[str, list[Problem]]  # by task; empty without evaluations
    overlap: dict[str, Any]  # by stage, what `exclude_tests` reports, for summary.json


# Bad rows go to the ``quarantine.jsonl`` of a run; without a run they are not recorded.


def recipe_problems(recipe: Recipe, run: RunDirectory | None = None) -> RecipeData:
    """Load all problems of a recipe and keep training and test problems apart."""
    data = {"rl": training_problems(recipe.rl, run, recipe.seed)}
    if recipe.sft is not None:
        data["sft"] = training_problems(recipe.sft, run, recipe.seed, solutions=True)
    tests = {} if recipe.eval is None else test_problems(recipe.eval, run)
    folder = None if recipe.eval is None else recipe.eval.data_dir
    overlap = {}
    for stage, problems in data.items():
        settings = recipe.rl if stage == "rl" or recipe.sft is None else recipe.sft
        test_sets = {**tests, **further_tests(settings, run, folder)}
        data[stage], overlap[stage] = exclude_tests(problems, test_sets, settings)
    enough(data["rl"], recipe.rl)
    check_data(data["rl"], recipe.rl)
    return RecipeData(data.get("sft", []), data["rl"], tests, overlap)


def further_tests(
    settings: Training, run: RunDirectory | None, folder: Path | str | None = None
) -> dict[str, list[Problem]]:
    """The test sets that `exclude` names beside those of the recipe, by name.

    Files are looked for in ``folder`` first.
    """
    if settings.exclude == NOTHING:
        return {}
    names = [name for part in settings.exclude.split(",") if (name := part.strip())]
    return {
        name: load_task(name, folder, quarantine=run and run.quarantine)
        for name in names
        if name != OWN_TESTS and name not in GENERATED
    }


def exclude_tests(
    problems: Sequence[Problem], tests: Mapping[str, Sequence[Problem]], settings: Training
) -> tuple[list[Problem], dict[str, Any]]:
    """Training problems without the test problems among them, verbatim or reworded.

    All are kept where `exclude` is "none".

    Returns:
      The problems to train on, and the overlap: ``excluded``, the number of training
      ``problems``, and the ids of the ``tests`` among them, by task.

    Example:
      >>> from trustclip.train.settings.stages import RLStage
      >>> text = "A bag holds 7 red and 9 blue marbles. How many marbles are in the bag?"
      >>> train = [Problem("a", text, "16"), Problem("b", "What is $2^5$?", "32")]
      >>> settings = RLStage(dataset="a.csv")
      >>> rest, overlap = exclude_tests(train, {"bags": [Problem("x", text, "16")]}, settings)
      >>> [problem.id for problem in rest], overlap
      (['b'], {'excluded': True, 'problems': 1, 'tests': {'bags': ['x']}})
    """
    generated = settings.dataset in (*GENERATED, PRIMER)
    # Generated ones are disjoint by construction, and too similar to search for copies.
    test_sets = {task: one for task, one in tests.items() if not (generated and task in GENERATED)}
    reports = {task: decontaminate(problems, test_set) for task, test_set in test_sets.items()}
    train_ids = set().union(*(report.train_ids for report in reports.values()))
    hits = {task: set(report.contaminated) for task, report in reports.items()}
    equal: dict[Tokens, list[tuple[str, str]]] = {}
    for task, test_set in test_sets.items():
        for problem in test_set:
            equal.setdefault(tokenize(problem.problem), []).append((task, problem.id))
    for problem in problems:
        if copies := equal.get(tokenize(problem.problem)):
            train_ids.add(problem.id)
            for task, test_id in copies:
                hits[task].add(test_id)
    excluded = settings.exclude != NOTHING
    rest = [problem for problem in problems if not excluded or problem.id not in train_ids]
    if not rest:
        raise ValueError(
            f"{settings.dataset}: every training problem is also a test problem; choose another "
            "data set or split (NAME@SPLIT)."
        )
    in_order = {
        task: [problem.id for problem in test_sets[task] if problem.id in ids]
        for task, ids in hits.items()
        if ids
    }
    return rest, {"excluded": excluded, "problems": len(train_ids), "tests": in_order}


def enough(problems: Sequence[Problem], settings: RLStage) -> None:
    """Refuse fewer problems than one generation takes: the trainer would make no update at all."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    steps = settings.steps_per_generation or settings.gradient_accumulation_steps
    completions = settings.per_device_train_batch_size * steps * processes
    minimum = completions // settings.num_generations
    if len(problems) < minimum:
        ranks = f" x {processes} processes" if processes > 1 else ""
        raise ValueError(
            f"{len(problems)} problems, but a generation takes {minimum} different ones: "
            f"per_device_train_batch_size x steps_per_generation{ranks} / num_generations = "
            f"{settings.per_device_train_batch_size} x {steps}"
            f"{f' x {processes}' if processes > 1 else ''} / {settings.num_generations}. "
            "Lower steps_per_generation (gradient_accumulation_steps where that is unset) or the "
            "batch size, or add problems."
        )


def overlap_text(overlap: Mapping[str, Any]) -> list[str]:
    """One sentence per stage about test problems in its training data; empty if it has none."""
    lines = []
    for stage, entry in overlap.items():
        if not entry["problems"]:
            continue
        tests = ", ".join(f"{len(ids)} of {task}" for task, ids in entry["tests"].items())
        many, copies = f"{stage}: {entry['problems']} training problems", f"test problems ({tests})"
        lines.append(
            f"{many} left out: they are {copies}, word for word or reworded."
            if entry["excluded"]
            else f"{many} are {copies}, and `exclude: none` trains on them: the scores on these "
            "test problems are no measure of what was learned."
        )
    return lines


def training_problems(
    settings: Training, run: RunDirectory | None, seed: int, *, solutions: bool = False
) -> list[Problem]:
    """Load the problems to train on; of a data set with splits, the training split.

    ``solutions`` keeps only problems that have one, and leaves ``settings.limit`` to the caller.
    """
    if settings.dataset in GENERATED:
        return GENERATED[settings.dataset](seed=seed).train(settings.limit or MANY)
    if settings.dataset == PRIMER and solutions:
        return Arithmetic(seed=seed).primer(settings.limit or PRIMER_SIZE)
    rl = settings if isinstance(settings, RLStage) else None
    problems = load_problems(
        source_of(settings.dataset, settings.split),
        limit=None if solutions else settings.limit,
        max_bad_rows=settings.max_bad_rows,
        quarantine=run and run.quarantine,
        selection=RowSelection(
            settings.columns,
            answers=rl is None or needs_answers(rl),
            further=rl is not None and has_own(rl),
        ),
    )
    if not solutions:
        return problems
    with_solutions = [problem for problem in problems if problem.solution]
    if not with_solutions:
        raise ValueError(
            f"{settings.dataset}: no problem has a solution to learn from; fine-tuning needs a "
            "column `solution` (or `generated_solution`)."
        )
    return with_solutions


def test_problems(settings: EvalStage, run: RunDirectory | None = None) -> dict[str, list[Problem]]:
    """Load the problems to evaluate on, by task; of a data set with splits, the test split.

    Generated problems are the same for every seed.
    """
    names = [part.strip() for part in settings.tasks.split(",") if part.strip()]
    labels = [stem_of(Path(name)) if Path(name).suffix else name for name in names]
    if not names:
        raise ValueError("--tasks is empty; give for example --tasks amc23,aime24.")
    if duplicates := [label for label, times in Counter(labels).items() if times > 1]:
        raise ValueError(f"two tasks have the name {duplicates[0]!r}: {settings.tasks}")
    tasks = {}
    for label, name in zip(labels, names, strict=True):
        if name in GENERATED:
            problems = GENERATED[name]().test(settings.limit or 128)
        else:
            columns = RowSelection(
                settings.columns, answers=needs_answers(settings), further=has_own(settings)
            )
            problems = load_task(
                name, settings.data_dir, quarantine=run and run.quarantine, selection=columns
            )
        tasks[label] = problems[: settings.limit]
        check_columns(read_rewards(settings.reward), columns_of(problems[0]), name)
    return tasks


#: Beside a trained model: the prompts that it was trained with.
FILE = "prompt.json"


def record(style: PromptStyle, tokenizer: Any = None, problem: str | None = None) -> dict[str, Any]:
    """A prompt in plain values, for ``summary.json`` and for `FILE`.

    With the hash of a tokenizer's chat template, and a problem as the model gets it.
    """
    prompt = {"style": style.name, **style.asked}
    if tokenizer is not None:
        template = str(tokenizer.chat_template).encode()
        prompt["chat_template"] = hashlib.sha256(template).hexdigest()[:16]
    if tokenizer is not None and problem is not None:
        prompt["rendered"] = rendered(tokenizer, problem, style)
    return prompt


def trained_with(model: str) -> dict[str, Any] | None:
    """The prompts that the model in a folder was trained with; None if unknown."""
    try:
        content = json.loads((Path(model) / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def unlike(model: str, style: PromptStyle) -> Iterator[str]:
    """The sentence about a model that was trained with other prompts than it will get."""
    before = trained_with(model)
    if before is not None and (names := _diff_keys(before, style.asked)):
        yield (
            f"{model} was trained with other prompts (style {before.get('style')!r}) than it gets "
            f"now (style {style.name!r}): {names} differ. Set prompt_style and prompt to those of "
            "its training unless this is meant."
        )


def differences(recipe: Recipe) -> Iterator[str]:
    """Sentences about stages of a recipe that use other prompts than reinforcement learning."""
    for name in ("sft", "eval"):
        stage = getattr(recipe, name)
        if stage is not None and (names := _diff_keys(stage.style.asked, recipe.rl.style.asked)):
            yield (
                f"prompts of `{name}` (style {stage.style.name!r}) are not those of `rl` (style "
                f"{recipe.rl.style.name!r}): {names} differ."
            )


def _diff_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(name for name in other if one.get(name) != other[name])


def show(console: Console, lines: Iterator[str]) -> None:
    """Print warnings about prompts."""
    for line in lines:
        warn(console, line)
