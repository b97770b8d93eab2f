"""Problems for a recipe, generated or from a source, with training and test problems disjoint."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trustclip.recipes.settings import ARITHMETIC, PRIMER, EvalStage, Recipe, RLStage
from trustclip.runs.directory import RunDirectory
from trustclip.tasks.arithmetic import Arithmetic
from trustclip.tasks.decontaminate import decontaminate, tokenize
from trustclip.tasks.files import stem_of
from trustclip.tasks.problem import Problem
from trustclip.tasks.sources import load_problems, load_task

#: Number of generated problems when no limit is set.
GENERATED = 1024
#: The same for fine-tuning on a mixture of terse and worked solutions.
PRIMED = 2560


class TrainingData(Protocol):
    """The settings that determine which problems to train on."""

    @property
    def dataset(self) -> str: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def max_bad_rows(self) -> int: ...


@dataclass(frozen=True)
class RecipeData:
    """All problems of a recipe, training and test problems apart.

    Args:
      tuning: problems with solutions, for fine-tuning; empty without that stage.
      training: problems for reinforcement learning.
      tests: problems to evaluate on, by task; empty without evaluations.
      overlap: what was compared and left out, for ``summary.json``; empty without test problems.
    """

    tuning: list[Problem]
    training: list[Problem]
    tests: dict[str, list[Problem]]
    overlap: dict[str, Any]


def recipe_problems(recipe: Recipe, run: RunDirectory) -> RecipeData:
    """Load all problems of a recipe and keep training and test problems apart.

    Args:
      recipe: its `exclude_overlap` decides whether test problems among the training problems are
        left out (also the reworded ones, see `decontaminate`) or refused (equal ones).
      run: bad rows go to its ``quarantine.jsonl``.

    Raises:
      ValueError: a source that cannot be used, a test problem among the training problems, or too
        few problems for one generation.
    """
    data = {"rl": training_problems(recipe.rl, run, recipe.seed)}
    if recipe.sft is not None:
        data["sft"] = training_problems(recipe.sft, run, recipe.seed, solutions=True)
    tests = {} if recipe.eval is None else test_problems(recipe.eval, run)
    overlap: dict[str, Any] = {}
    if tests:
        overlap = {"reworded": recipe.exclude_overlap, "left_out": {}}
    for stage, problems in data.items():
        source = recipe.rl.dataset if stage == "rl" or recipe.sft is None else recipe.sft.dataset
        if source in (ARITHMETIC, PRIMER) and [*tests] == [ARITHMETIC]:
            continue  # disjoint by construction, and too similar for the search for copies
        if tests and recipe.exclude_overlap:
            data[stage], overlap["left_out"][stage] = separate(problems, tests)
        elif tests:
            refuse_overlap(problems, tests, f"{stage}.dataset {source}")
    enough(data["rl"], recipe.rl)
    return RecipeData(data.get("sft", []), data["rl"], tests, overlap)


def separate(
    problems: Sequence[Problem], tests: Mapping[str, Sequence[Problem]]
) -> tuple[list[Problem], dict[str, Any]]:
    """Remove the training problems that are test problems, verbatim or reworded.

    Args:
      problems: to train on.
      tests: to evaluate on, by task.

    Returns:
      The kept problems, and the numbers: training problems left out, and test problems found among
      them, by task.

    Raises:
      ValueError: none is left.

    Example:
      >>> text = "A bag holds 7 red and 9 blue marbles. How many marbles are in the bag?"
      >>> train = [Problem("a", text, "16"), Problem("b", "What is $2^5$?", "32")]
      >>> kept, counts = separate(train, {"bags": [Problem("x", text, "16")]})
      >>> [problem.id for problem in kept], counts
      (['b'], {'problems': 1, 'tests': {'bags': 1}})
    """
    reports = {task: decontaminate(problems, tested) for task, tested in tests.items()}
    found = set().union(*(report.train_ids for report in reports.values()))
    keys = {tokenize(problem.problem) for tested in tests.values() for problem in tested}
    found |= {problem.id for problem in problems if tokenize(problem.problem) in keys}
    kept = [problem for problem in problems if problem.id not in found]
    if not kept:
        raise ValueError("every training problem is also a test problem; nothing is left.")
    hits = {task: len(report.contaminated) for task, report in reports.items()}
    return kept, {"problems": len(found), "tests": hits}


def refuse_overlap(
    problems: Sequence[Problem], tests: Mapping[str, Sequence[Problem]], source: str
) -> None:
    """Refuse training problems that equal test problems up to layout and notation.

    Raises:
      ValueError: some do; states how many and gives an example.
    """
    tested = {
        tokenize(problem.problem): (task, problem.id)
        for task, ones in tests.items()
        for problem in ones
    }
    same = [(p.id, tested[key]) for p in problems if (key := tokenize(p.problem)) in tested]
    if not same:
        return
    tasks = ", ".join(sorted({task for _, (task, _) in same}))
    trained, (task, test) = same[0]
    raise ValueError(
        f"{len(same)} of {len(problems)} training problems ({source}) are also test problems "
        f"(eval.tasks {tasks}): e.g. {trained!r} is {test!r} of {task}. Choose another data "
        "set or split (NAME@SPLIT), or set `exclude_overlap: true` to leave them out of training."
    )


def enough(problems: Sequence[Problem], settings: RLStage) -> None:
    """Refuse fewer problems than one generation takes: the trainer would make no update at all.

    Raises:
      ValueError: there are fewer; the message shows the arithmetic.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    steps = settings.steps_per_generation or settings.gradient_accumulation_steps
    completions = settings.per_device_train_batch_size * steps * processes
    needed = completions // settings.num_generations
    if len(problems) < needed:
        ranks = f" x {processes} processes" if processes > 1 else ""
        raise ValueError(
            f"{len(problems)} problems, but a generation takes {needed} different ones: "
            f"per_device_train_batch_size x steps_per_generation{ranks} / num_generations = "
            f"{settings.per_device_train_batch_size} x {steps}"
            f"{f' x {processes}' if processes > 1 else ''} / {settings.num_generations}. "
            "Lower steps_per_generation (gradient_accumulation_steps where that is unset) or the "
            "batch size, or add problems."
        )


def overlap_text(overlap: Mapping[str, Any]) -> list[str]:
    """One sentence per stage about problems left out of training; empty if none was."""
    lines = []
    for stage, counts in overlap.get("left_out", {}).items():
        if counts["problems"]:
            tests = ", ".join(f"{n} of {task}" for task, n in counts["tests"].items() if n)
            lines.append(
                f"{stage}: {counts['problems']} training problems left out: they are test problems"
                f"{f' ({tests})' if tests else ''}, word for word or reworded."
            )
    return lines


def training_problems(
    settings: TrainingData, run: RunDirectory, seed: int, *, solutions: bool = False
) -> list[Problem]:
    """Load the problems to train on; of a data set with splits, the training split.

    Args:
      settings: which ones.
      run: bad rows go to its ``quarantine.jsonl``.
      seed: of generated problems.
      solutions: keep only problems that have one, and leave ``settings.limit`` to the caller.

    Raises:
      ValueError: no such source, too many bad rows, or no problem with a solution.
    """
    if settings.dataset == ARITHMETIC:
        return Arithmetic(seed=seed).train(settings.limit or GENERATED)
    if settings.dataset == PRIMER and solutions:
        return Arithmetic(seed=seed).primer(settings.limit or PRIMED)
    problems = load_problems(
        settings.dataset,
        limit=None if solutions else settings.limit,
        max_bad_rows=settings.max_bad_rows,
        quarantine=run.quarantine,
    )
    if not solutions:
        return problems
    solved = [problem for problem in problems if problem.solution]
    if not solved:
        raise ValueError(
            f"{settings.dataset}: no problem has a solution to learn from; fine-tuning needs a "
            "column `solution` (or `generated_solution`)."
        )
    return solved


def test_problems(settings: EvalStage, run: RunDirectory) -> dict[str, list[Problem]]:
    """Load the problems to evaluate on, by task; of a data set with splits, the test split.

    Generated problems are the same for every seed.

    Raises:
      ValueError: no such task, two tasks of one name, or bad rows in a known benchmark.
    """
    names = [part.strip() for part in settings.tasks.split(",") if part.strip()]
    labels = [stem_of(Path(name)) if Path(name).suffix else name for name in names]
    if not names:
        raise ValueError("--tasks is empty; give for example --tasks amc23,aime24.")
    if twice := [label for label, times in Counter(labels).items() if times > 1]:
        raise ValueError(f"two tasks have the name {twice[0]!r}: {settings.tasks}")
    tasks = {}
    for label, name in zip(labels, names, strict=True):
        if name == ARITHMETIC:
            problems = Arithmetic().test(settings.limit or 128)
        else:
            problems = load_task(name, settings.data_dir, quarantine=run.quarantine)
        tasks[label] = problems[: settings.limit]
    return tasks
