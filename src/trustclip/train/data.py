"""Problems for a recipe, generated or from a source, with training and test problems disjoint."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.findings.facts import FEW_PROBLEMS
from trustclip.support.jsonl import read_mapping
from trustclip.support.lock import world
from trustclip.support.names import listed
from trustclip.support.terminal import announce, warn
from trustclip.train.problems.arithmetic import Arithmetic
from trustclip.train.problems.decontaminate import decontaminate
from trustclip.train.problems.generated import GENERATED, PRIMER
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import PROMPT_FILE, PromptStyle, messages, tokens_of
from trustclip.train.problems.sources import RowSelection, load_problems
from trustclip.train.problems.verify.chosen import check_columns
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import (
    NEAR,
    NOTHING,
    OWN_TESTS,
    EvalStage,
    Recipe,
    RLSettings,
    RLStage,
    SFTSettings,
    Training,
)

#: Number of generated problems when no limit is set.
MANY = 1024
#: The same for fine-tuning on a mixture of terse and worked solutions.
PRIMER_SIZE = 2560
#: Most pairs of near problems that a run's record lists.
LISTED = 100


@dataclass(frozen=True)
class RecipeData:
    """All problems of a recipe, training and test problems apart."""

    tuning: list[Problem]  # with solutions; empty without fine-tuning
    training: list[Problem]
    tests: dict[str, list[Problem]]  # by task; empty without evaluations
    overlap: dict[str, Any]  # by stage, what `exclude_tests` reports, for summary.json


def recipe_problems(recipe: Recipe, run: RunDirectory | None = None) -> RecipeData:
    """Load all problems of a recipe, training and test problems apart; bad rows go to the run."""
    tests = {} if recipe.eval is None else test_problems(recipe.eval, run)
    training, overlap = training_data(recipe.training, run, tests)
    tuning: list[Problem] = []
    if recipe.tuning is not None:
        tuning, of_tuning = training_data(recipe.tuning, run, tests)
        overlap |= of_tuning
    enough(training, recipe.rl)
    check_data(training, recipe.rl)
    return RecipeData(tuning, training, tests, overlap)


def training_data(
    settings: RLSettings | SFTSettings,
    run: RunDirectory | None,
    tests: Mapping[str, Sequence[Problem]] | None = None,
) -> tuple[list[Problem], dict[str, Any]]:
    """The problems of a stage without test problems, and what `exclude_tests` found, by its name.

    Test problems are the given ones, and those that the settings name; see `further_tests`.
    """
    solutions = isinstance(settings, SFTSettings)
    problems = training_problems(settings, run, settings.seed, solutions=solutions)
    all_tests = {**(tests or {}), **further_tests(settings, run)}
    problems, found = exclude_tests(problems, all_tests, settings)
    return problems, {"sft" if solutions else "rl": found}


def further_tests(settings: Training, run: RunDirectory | None) -> dict[str, list[Problem]]:
    """The test sets that `exclude` names beside those of the recipe, by name."""
    if settings.exclude == NOTHING:
        return {}
    return {
        name: load_problems(name, use="test", quarantine=run and run.quarantine)
        for name in listed(settings.exclude)
        if name not in (OWN_TESTS, NEAR, *GENERATED)
    }


def exclude_tests(
    problems: Sequence[Problem], tests: Mapping[str, Sequence[Problem]], settings: Training
) -> tuple[list[Problem], dict[str, Any]]:
    """Training problems without the copies of test problems among them.

    Near problems are left out as well where `exclude` says "near", and all are kept where it is
    "none"; see `trustclip.train.problems.decontaminate.decontaminate`.

    Returns:
      The problems to train on, and the overlap: ``excluded``, the number of training ``problems``
      that are (or would be) left out, the ids of the ``tests`` that they are like, by task, and the
      number of ``near`` ones that are trained on, with the likest of them as ``pairs``.

    Example:
      >>> from trustclip.train.settings.stages import RLStage
      >>> text = "A bag holds 7 red and 9 blue marbles. How many marbles are in the bag?"
      >>> train = [Problem("a", text, "16"), Problem("b", "What is $2^5$?", "32")]
      >>> settings = RLStage(dataset="a.csv")
      >>> rest, overlap = exclude_tests(train, {"bags": [Problem("x", text, "16")]}, settings)
      >>> [problem.id for problem in rest], overlap["problems"], overlap["tests"]
      (['b'], 1, {'bags': ['x']})
    """
    generated = settings.dataset in (*GENERATED, PRIMER)
    # Generated ones are disjoint by construction, and too similar to search for copies.
    test_sets = {task: one for task, one in tests.items() if not (generated and task in GENERATED)}
    pairs = {task: decontaminate(problems, one) for task, one in test_sets.items()}
    names = listed(settings.exclude)
    out = {
        task: [pair for pair in found if pair.copy or NEAR in names]
        for task, found in pairs.items()
    }
    train_ids = {pair.train_id for found in out.values() for pair in found}
    excluded = settings.exclude != NOTHING
    rest = [problem for problem in problems if not excluded or problem.id not in train_ids]
    if not rest:
        raise ValueError(
            f"{settings.dataset}: every training problem is also a test problem; choose another "
            "data set or split (NAME@SPLIT)."
        )
    in_order = {task: list(dict.fromkeys(p.test_id for p in found)) for task, found in out.items()}
    near = [
        {"task": task, **asdict(pair)}
        for task, found in pairs.items()
        for pair in found
        if pair.train_id not in train_ids
    ]
    return rest, {
        "excluded": excluded,
        "problems": len(train_ids),
        "tests": {task: ids for task, ids in in_order.items() if ids},
        "near": {
            "problems": len({pair["train_id"] for pair in near}),
            "pairs": sorted(near, key=lambda pair: -pair["similarity"])[:LISTED],
        },
    }


def enough(problems: Sequence[Problem], settings: RLStage) -> None:
    """Refuse fewer problems than one generation takes: the trainer would make no update at all."""
    processes = world()
    steps = settings.schedule.steps_per_generation
    minimum = settings.samples * processes // settings.num_generations
    if len(problems) < minimum:
        ranks = f" x {processes} processes" if processes > 1 else ""
        raise ValueError(
            f"too few problems, {len(problems)}: each generation takes {minimum} different ones: "
            f"per_device_train_batch_size x steps_per_generation{ranks} / num_generations = "
            f"{settings.per_device_train_batch_size} x {steps}"
            f"{f' x {processes}' if processes > 1 else ''} / {settings.num_generations}. "
            "Lower steps_per_generation (gradient_accumulation_steps where that is unset) or the "
            "batch size, or add problems."
        )


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


def tell_overlap(console: Console, overlap: Mapping[str, Any]) -> None:
    """Print the sentences of `overlap_text`."""
    for line in overlap_text(overlap):
        announce(console, line)


def overlap_text(overlap: Mapping[str, Any]) -> list[str]:
    """Sentences about test problems in each stage's training data; empty if there are none."""
    lines = []
    for stage, entry in overlap.items():
        tests = ", ".join(f"{len(ids)} of {task}" for task, ids in entry["tests"].items())
        what = f"problems that are also test problems ({tests})"
        if entry["problems"] and entry["excluded"]:
            lines.append(f"{stage}: {entry['problems']} training {what} are left out.")
        elif entry["problems"]:
            lines.append(
                f"{stage}: {entry['problems']} training {what} are trained on, as `exclude: none` "
                "says: the scores on these test problems are no measure of what was learned."
            )
        if (near := entry["near"])["problems"]:
            likest = near["pairs"][0]
            lines.append(
                f"{stage}: {near['problems']} training problems are like a test problem, reworded "
                f"or another of the same template, and are trained on. The likest: "
                f"{likest['train_id']} and {likest['test_id']} of {likest['task']}. The run's "
                "summary.json lists them; `exclude: tests,near` leaves them out."
            )
    return lines


def few_tests(tests: Mapping[str, Sequence[Problem]]) -> Iterator[str]:
    """The warning about so few test problems that only large changes show.

    Example:
      >>> [*few_tests({"mine": [Problem("a", "1+2", "3")] * 6})]
      ['there are only 6 test problems: a score of 50 % is uncertain by up to 40 points either \
way, so a smaller change may be chance. Name more test problems.']
    """
    problems = sum(map(len, tests.values()))
    if 0 < problems < FEW_PROBLEMS:
        points = 100 * 1.96 * math.sqrt(0.25 / problems)
        yield (
            f"there are only {problems} test problems: a score of 50 % is uncertain by up to "
            f"{points:.0f} points either way, so a smaller change may be chance. Name more test "
            "problems."
        )


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
    is_rl = isinstance(settings, RLStage)
    problems = load_problems(
        settings.dataset,
        limit=None if solutions else settings.limit,
        max_bad_rows=settings.max_bad_rows,
        quarantine=run and run.quarantine,
        selection=_selection(settings) if is_rl else RowSelection(settings.columns),
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
    names = settings.names
    labels = [Path(name).stem if Path(name).suffix else name for name in names]
    if duplicates := [label for label, times in Counter(labels).items() if times > 1]:
        raise ValueError(f"two tasks have the name {duplicates[0]!r}: {settings.tasks}")
    tasks = {}
    for label, name in zip(labels, names, strict=True):
        if name in GENERATED:
            problems = GENERATED[name]().test(settings.limit or 128)
        else:
            problems = load_problems(
                name,
                use="test",
                max_bad_rows=settings.max_bad_rows,
                quarantine=run and run.quarantine,
                selection=_selection(settings),
            )
        tasks[label] = problems[: settings.limit]
        check_columns(settings.rewards, columns_in(problems), name, settings.columns)
    return tasks


def _selection(settings: RLStage | EvalStage) -> RowSelection:
    """What the rewards read of a row: a gold answer, and any column if one is the user's own."""
    return RowSelection(
        settings.columns,
        answers=any(one.reads_answer for one in settings.rewards),
        further=any(one.own for one in settings.rewards),
    )


def check_data(problems: Sequence[Problem], settings: RLStage) -> None:
    """Refuse problems without a column that the rewards read, before a model loads."""
    check_columns(settings.rewards, columns_in(problems), settings.dataset, settings.columns)


def columns_in(problems: Sequence[Problem]) -> dict[str, None]:
    """The columns that at least one of the problems has, each None."""
    return dict.fromkeys(name for problem in problems for name in columns_of(problem))


def columns_of(problem: Problem) -> dict[str, Any]:
    """Columns of a problem that reward functions get."""
    answer = {"answer": problem.answer} if problem.answer else {}
    return {**problem.columns, **answer, "id": problem.id}


def training_row(problem: Problem, style: PromptStyle) -> dict[str, Any]:
    """A row of the trainer's data set: the prompt, and the columns that reward functions get."""
    return {**columns_of(problem), "prompt": messages(problem.problem, style)}


def data_table(problems: Sequence[Problem], style: PromptStyle) -> Any:
    """The trainer's data set; an error names the column with values of several types."""
    from datasets import Dataset
    from pyarrow import ArrowException

    absent = columns_in(problems)  # a table has the columns of its first row alone
    rows = [absent | training_row(problem, style) for problem in problems]
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


def trained_with(model: str) -> dict[str, Any] | None:
    """The prompts that the model in a folder was trained with; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        return dict(read_mapping(Path(model) / PROMPT_FILE)) or None
    return None


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
