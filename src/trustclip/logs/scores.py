"""Anybody's scores as runs: one table of (arm, seed, step, task, problem, sample, score).

Its rows come from `trustclip.logs.score_files`. A run is an arm and a seed. What is done with runs
of our own is then done with these: `compare`, `power`, `report`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from trustclip.logs.answers import of_answers, usual
from trustclip.logs.choice import Choice
from trustclip.logs.run import OF_RUN, Evaluation, Run
from trustclip.stats.curves import area
from trustclip.support.names import some

#: Scores in words: of tables, and of Inspect.
WORDS = {"true": 1.0, "false": 0.0, "c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0}
#: Most scores of a table that are kept.
MOST = 20_000_000


class Score(NamedTuple):
    """A row of the table; None where it says nothing.

    A row without a problem is a point of a curve. A score of None is an answer that was lost.
    """

    where: str
    arm: str
    seed: object
    step: int | None
    task: str
    problem: str | None
    sample: object
    score: float | None
    family: str | None = None


def number_of(value: object, where: str, right: float | None) -> float | None:
    """A score from 0 to 1; None for an answer that was lost (null, NaN or nothing).

    Raises:
      ValueError: it is no number, or not from 0 to 1 and no limit of right answers is given.

    Example:
      >>> number_of("true", "row 1", None), number_of(-1, "row 2", 1.0), number_of("", "", None)
      (1.0, 0.0, None)
    """
    word = str(value).strip().lower()
    if word in ("", "none", "null"):
        return None
    try:
        number = WORDS[word] if word in WORDS else float(word)
    except ValueError:
        raise ValueError(f"{where}: the score {str(value)[:40]!r} is no number.") from None
    if number != number:
        return None
    if right is not None:
        return float(number >= right)
    if not 0 <= number <= 1:
        raise ValueError(
            f"{where}: the score {number:g} is not from 0 to 1; say from which score on an answer "
            "is right, such as --right 1."
        )
    return number


def runs_of(rows: Iterable[Score], choice: Choice) -> list[Run]:
    """The runs of a table: one for each arm and seed, in order of appearance.

    Raises:
      ValueError: no row, two scores of one answer, or points of curves among answers to problems.
    """
    answers: dict[Any, Any] = {}
    points: dict[tuple[str, Any, str], dict[int, float]] = {}
    families: dict[str, dict[str, str]] = {}
    doubled: dict[Any, int] = {}
    for count, row in enumerate(rows):
        if count >= MOST:
            raise ValueError(f"{row.where}: a table may hold {MOST:,} scores.")
        run = (row.arm, row.seed)
        if row.problem is None:
            if row.score is not None:
                curve = points.setdefault((*run, row.task), {})
                step = len(curve) if row.step is None else row.step
                # The log of a run that was resumed repeats steps; a table lacks a seed.
                if not choice.curve and curve.get(step, row.score) != row.score:
                    raise ValueError(
                        f"{row.where}: {row.arm}, seed {row.seed}, has two values at step {step}; "
                        "name the column of the seed, such as --columns seed=run."
                    )
                curve[step] = row.score
            continue
        steps = answers.setdefault(run, {})
        problems = steps.setdefault(row.step, {}).setdefault(row.task, {})
        samples = problems.setdefault(row.problem, {})
        sample = len(samples) if row.sample is None else row.sample
        if sample in samples:
            if samples[sample] != row.score:
                raise ValueError(
                    f"{row.where}: sample {sample} of {row.task}: {row.problem[:60]} of {row.arm} "
                    f"has two scores, {samples[sample]} and {row.score}."
                )
            doubled[run] = doubled.get(run, 0) + 1
            continue
        samples[sample] = row.score
        if family := choice.family_of(row.problem) if choice.in_ids else row.family:
            families.setdefault(row.task, {})[row.problem] = family
    if answers and points:
        raise ValueError("some rows have a problem and others have none; give them one by one.")
    if points:
        return _runs_of_curves(points, choice)
    if not answers:
        raise ValueError("there is no score in what was given.")
    return _runs_of_answers(answers, families, doubled)


#: A run that lacks this share of the problems, or more, was given other ones.
MOST_LACKING = 0.5


def _runs_of_answers(
    answers: Mapping[Any, Any],
    families: Mapping[str, Mapping[str, str]],
    doubled: Mapping[Any, int],
) -> list[Run]:
    """Runs whose evaluations have all problems of any run: one without an answer lost them all."""
    every: dict[str, dict[str, None]] = {}
    asked: dict[str, int] = {}
    for tasks in (tasks for steps in answers.values() for tasks in steps.values()):
        for task, problems in tasks.items():
            every.setdefault(task, {}).update(dict.fromkeys(problems))
            asked[task] = max(usual([[*one] for one in problems.values()]), asked.get(task, 0))
    keys = [(task, name) for task, problems in every.items() for name in problems]
    runs = []
    for (arm, seed), steps in answers.items():
        evaluations = []
        for step, tasks in sorted(steps.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            lacking = [f"{t}: {name[:60]}" for t, name in keys if name not in tasks.get(t, {})]
            if len(lacking) >= MOST_LACKING * len(keys):
                raise ValueError(
                    f"{arm}, seed {seed}, lacks {len(lacking)} of {len(keys)} problems of the "
                    f"table ({some(lacking, 3)}): the runs were evaluated on different problems."
                )
            given = {
                task: {name: _given(tasks.get(task, {}).get(name)) for name in problems}
                for task, problems in every.items()
            }
            if not any(right for problems in given.values() for right in problems.values()):
                raise ValueError(f"{arm}, seed {seed}: every answer is lost.")
            scores = of_answers(given, families)
            evaluations.append(Evaluation(step, scores, given, families=families, asked=asked))
        many = doubled.get((arm, seed))
        said = [f"{many} rows given twice, counted once"] if many else []
        runs.append(_run(arm, seed, evaluations, said))
    return runs


def _given(samples: Mapping[Any, float | None] | None) -> list[Any]:
    """Scores of a problem in the order of their numbers, without lost ones; 0 and 1 as integers."""
    return [
        int(score) if score in (0, 1) else score
        for score in (samples or {}).values()
        if score is not None
    ]


def _runs_of_curves(
    points: Mapping[tuple[str, Any, str], Mapping[int, float]], choice: Choice
) -> list[Run]:
    """Runs with one number each, by the rule that was chosen beforehand."""
    shares = all(0 <= value <= 1 for curve in points.values() for value in curve.values())
    scale, factor = ("percent", 1) if shares else ("their own unit", 100)
    found: dict[tuple[str, Any], dict[str, Mapping[int, float]]] = {}
    for (arm, seed, name), curve in points.items():
        found.setdefault((arm, seed), {})[name] = {at: v / factor for at, v in curve.items()}
    ((first, last), _), *_ = Counter((min(c), max(c)) for c in points.values()).most_common()
    runs = []
    for run, curves in found.items():
        said = []
        for curve in curves.values():
            if (min(curve), max(curve)) != (first, last):
                said.append(f"its steps are {min(curve)} to {max(curve)}, others {first} to {last}")
        runs.append(replace(_of_curves(_run(*run, [], said), curves, choice.by), scale=scale))
    return runs


def by_rule(run: Run, by: str) -> Run:
    """A run whose scores at all its updates become one number.

    Raises:
      ValueError: it was not evaluated at any update.
    """
    at = {e.step: e for e in run.evaluations if e.step is not None and e.metrics}
    if not at:
        raise ValueError(f"{run.path} has no scores by update, of which --by {by} could be taken.")
    tasks = next(iter(at.values())).tasks
    curve = {
        step: score["value"] for step, e in at.items() if (score := e.score(None, e.metrics[0]))
    }
    short = [done for e in run.evaluations if (done := e.lost[0])]
    said = [f"{sum(short)} answers are lost: all others make the curve"] if short else []
    return _of_curves(
        replace(run, remarks=[*run.remarks, *said]),
        {tasks[0] if len(tasks) == 1 else "average": curve},
        by,
    )


def _of_curves(run: Run, curves: Mapping[str, Mapping[int, float]], by: str) -> Run:
    """A run with one number of each curve, and what has to be said of it."""
    tasks, remarks = {}, [*run.remarks]
    for name, curve in curves.items():
        value, remark = _number(curve, by)
        score = f"{name.replace('@', ' at ')} ({by}){OF_RUN}"
        tasks[name] = {score: {"value": value, "low": None, "high": None}}
        remarks += [remark] if remark else []
    scores = {"tasks": tasks, "average": next(iter(tasks.values()))}
    return replace(run, evaluations=[Evaluation(None, scores, {})], remarks=remarks)


def _number(curve: Mapping[int, float], by: str) -> tuple[float, str]:
    """One number of a curve, and what has to be said of it."""
    steps = sorted(curve)
    values = [curve[step] for step in steps]
    if by == "area":
        if len(steps) < 2:
            raise ValueError("an area needs a curve of two points or more; this one has 1.")
        return area(steps, values), ""
    if by == "end":
        return values[-1], ""
    count = len(values)
    # Neighbours differ by noise mostly: their differences have twice its variance.
    noise = float(np.std(np.diff(values)) / np.sqrt(2)) if count > 2 else 0.0
    bias = noise * float(ndtri((count - 0.375) / (count + 0.25))) if count > 1 else 0.0
    return max(values), (
        f"the best of {count} values is a maximum, and lies about {bias:.3g} above what the same "
        "model would score again"
    )


def _run(arm: str, seed: object, evaluations: Sequence[Evaluation], remarks: Sequence[str]) -> Run:
    return Run(
        path=Path("scores") / f"{arm}-{seed}".replace("/", "-"),
        config={"command": "scores", "model": "scores"},
        summary={"finished": True},
        remarks=[*remarks],
        evaluations=evaluations,
        entry={"label": arm, "seed": seed, "model": "scores"},
    )


def in_families(run: Run, choice: Choice) -> Run:
    """A run of our own whose problems come in families, by their ids.

    Raises:
      ValueError: a column is named, which run directories do not have.
    """
    if not choice.cluster:
        return run
    if not choice.in_ids:
        raise ValueError(
            f"{run.path} has no column {choice.cluster!r}: of run directories, --cluster is the "
            "sign that ends the family in an id, such as --cluster=-, or --cluster numbers."
        )
    evaluations = []
    for one in run.evaluations:
        families = {
            task: {name: choice.family_of(name) for name in problems}
            for task, problems in one.answers.items()
        }
        again = of_answers(one.answers, families) if families else one.scores
        parts = one.scores["tasks"].items()
        scores = {
            "tasks": {task: {**part, **again["tasks"].get(task, {})} for task, part in parts},
            "average": {**one.scores["average"], **again["average"]},
        }
        evaluations.append(replace(one, scores=scores, families=families))
    return replace(run, evaluations=evaluations)
