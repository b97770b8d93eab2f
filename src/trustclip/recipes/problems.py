"""Problems for a recipe: generated ones, or those of a source, with the bad rows set aside."""

from pathlib import Path
from typing import Protocol

from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import ARITHMETIC, PRIMER, EvalStage
from trustclip.tasks.arithmetic import Arithmetic
from trustclip.tasks.problem import Problem
from trustclip.tasks.sources import load_problems, load_task

#: Generated problems when nobody says how many.
GENERATED = 1024
#: The same for fine-tuning on terse and worked solutions.
PRIMED = 2560


class TrainingData(Protocol):
    """The settings that say which problems to train on."""

    @property
    def dataset(self) -> str: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def max_bad_rows(self) -> int: ...
    @property
    def seed(self) -> int: ...


def training_problems(
    settings: TrainingData, run: RunDirectory, *, solutions: bool = False
) -> list[Problem]:
    """Problems to train on.

    Args:
      settings: which ones.
      run: bad rows go to its ``quarantine.jsonl``.
      solutions: keep only problems that have one, and leave ``settings.limit`` to the caller.

    Raises:
      ValueError: no such source, too many bad rows, or no problem with a solution.
    """
    if settings.dataset == ARITHMETIC:
        return Arithmetic(seed=settings.seed).train(settings.limit or GENERATED)
    if settings.dataset == PRIMER and solutions:
        return Arithmetic(seed=settings.seed).primer(settings.limit or PRIMED)
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
    """Problems to evaluate on, by task; the generated ones are the same for every seed.

    Raises:
      ValueError: no such task, or bad rows in a known benchmark.
    """
    tasks = {}
    for name in (part.strip() for part in settings.tasks.split(",") if part.strip()):
        label = Path(name).stem if Path(name).suffix else name
        if name == ARITHMETIC:
            problems = Arithmetic().test(settings.limit or 128)
        else:
            problems = load_task(name, settings.data_dir, quarantine=run.quarantine)
        tasks[label] = problems[: settings.limit]
    if not tasks:
        raise ValueError("--tasks names no task; for example --tasks amc23,aime24.")
    return tasks
