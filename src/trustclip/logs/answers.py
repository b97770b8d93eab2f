"""From the answers of an evaluation to scores with intervals."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from trustclip import stats
from trustclip.logs.samples import fingerprint
from trustclip.stats.scores import Strata, benchmarks
from trustclip.support.jsonl import Row

#: Columns that a row may have besides ``id`` and ``correct``, and their values where unknown.
_UNKNOWN: Mapping[str, Any] = {
    "gold": "",
    "response": "",
    "extracted": "",
    "tokens": math.nan,
    "truncated": False,
}


def answer_rows(
    task: str, answers: Mapping[Any, Sequence[Any]] | Sequence[Mapping[str, Any]]
) -> list[Row]:
    """Rows of the answers to the problems of a task, K to each.

    Answers are ``{problem: [1, 0, ...]}``, or rows with ``id`` and ``correct``, 0 or 1.

    Example:
      >>> rows = answer_rows("sums", {"1+1": [1, 0]})
      >>> [(row["id"], row["k"], row["correct"]) for row in rows]
      [('1+1', 0, 1), ('1+1', 1, 0)]
    """
    number: Counter[str] = Counter()
    rows: list[Row] = []
    if isinstance(answers, Mapping):
        answers = [{"id": i, "correct": one} for i, samples in answers.items() for one in samples]
    for row in answers:
        if "id" not in row or row.get("correct") not in (0, 1):
            raise ValueError(
                f"an answer has `id`, its problem, and `correct`, 0 or 1; got {dict(row)!r:.200}."
            )
        identity = str(row["id"])
        optional = {name: row.get(name, unknown) for name, unknown in _UNKNOWN.items()}
        own = {"task": task, "id": identity, "k": number[identity], "judged": "given"}
        rows.append({**own, "correct": int(row["correct"]), **optional})
        number[identity] += 1
    if not rows:
        raise ValueError(f"there are no answers to record for {task!r}.")
    counts = [(count, identity) for identity, count in number.items()]
    (least, fewest), (most, largest) = min(counts), max(counts)
    if least != most:
        raise ValueError(
            f"every problem needs the same number of answers: {fewest!r} has {least}, {largest!r} "
            f"has {most}."
        )
    return rows


def score_rows(result: Mapping[str, Any], step: int) -> list[Row]:
    """Rows of ``metrics.jsonl``, one per task, from `scores`; ``average`` only over several tasks.

    Example:
      >>> part = {"mean@1": {"value": 0.5, "low": 0.2, "high": 0.8}, "problems": 6, "curve": {}}
      >>> score_rows({"tasks": {"t": part}, "average": part}, 8)[0]["mean@1/low"]
      0.2
    """
    parts = dict(result["tasks"])
    if len(parts) > 1:
        parts["average"] = result["average"]
    rows = []
    for task, part in parts.items():
        row: Row = {"stage": "eval", "step": step, "task": task}
        for name, value in part.items():
            if name.partition("@")[1]:
                row |= {name: value["value"], f"{name}/low": value["low"]}
                row[f"{name}/high"] = value["high"]
            elif name == "rewards":
                row |= {f"rewards/{label}": mean["value"] for label, mean in value.items()}
            elif name != "curve":
                row[name] = value
        rows.append(row)
    return rows


def outcomes(rows: Iterable[Row]) -> dict[str, dict[str, list[int]]]:
    """Correctness by task and problem: ``{task: {id: [0, 1, ...]}}``, in order of appearance."""
    answers: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        answers[row["task"]][row["id"]].append(row["correct"])
    return {task: dict(problems) for task, problems in answers.items()}


def scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean@K and Pass@K with 95 % intervals, per task and macro-averaged, and how answers end.

    Args:
      rows: of `sample`, every problem with the same number of samples K.

    Returns:
      ``{"tasks": {task: {...}}, "average": {...}}``; each holds ``mean@K`` and ``pass@K`` as
      ``{"value", "low", "high"}`` (shares of 1), ``problems``, ``truncated``, ``no_answer``,
      ``timeout`` (of the verifier; shares of completions), ``length`` (mean, tokens) and ``curve``:
      ``k`` from 1 to K, ``mean`` of the first k samples and unbiased ``pass`` at k. A task whose
      rows have ``rewards`` also holds the mean of each, with its 95 % interval over problems.

    Example:
      >>> rows = [{"task": "t", "id": str(i), "correct": int(i > 0), "tokens": 4, "extracted": "1",
      ...          "truncated": False, "judged": "direct"} for i in range(3) for _ in range(2)]
      >>> round(scores(rows)["average"]["mean@2"]["value"], 3)
      0.667
    """
    by_task = outcomes(rows)
    table = of_answers(by_task)
    for task, part in table["tasks"].items():
        own = [row for row in rows if row["task"] == task]
        part |= _endings(own)
        if means := _rewards(own):
            part["rewards"] = means
    table["average"] |= _endings(rows)
    return table


def of_answers(
    answers: Mapping[str, Mapping[str, list[int]]],
    families: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """The part of `scores` that follows from correctness alone; of problems that were answered.

    Where families of problems are given, ``{task: {problem: family}}``, these are the independent
    units of the intervals. Where answers are right in part, there is no Pass@K.

    Example:
      >>> result = of_answers({"t": {"1": [0, 1], "2": [1, 1]}})
      >>> result["average"]["mean@2"]["value"], result["tasks"]["t"]["problems"]
      (0.75, 2)
    """
    by_task: dict[str, tuple[list[list[int]], list[Any]]] = {}
    for task, problems in answers.items():
        family = (families or {}).get(task, {})
        there = [(name, right) for name, right in problems.items() if right]
        places = [(task, family.get(name, name)) if families else task for name, _ in there]
        by_task[task] = [right for _, right in there], places
    parts = {task: _scores(right, places) for task, (right, places) in by_task.items() if right}
    every = [one for right, _ in by_task.values() for one in right]
    return {
        "tasks": parts,
        "average": _scores(every, [one for _, places in by_task.values() for one in places]),
    }


def usual(correct: Sequence[Sequence[int]], strata: Strata | None = None) -> int:
    """K: the most answers that half of the problems of every benchmark have, or more.

    Of a whole evaluation it is the number of all; a file that lost answers keeps its K. Correctness
    is 0/1 by [problems, samples], and strata are the benchmark of each problem.

    Example:
      >>> usual([[1, 0, 0, 1]] * 9 + [[1, 0]])
      4
    """
    counts: dict[str, list[int]] = defaultdict(list)
    tasks = benchmarks(strata) or [""] * len(correct)
    for task, samples in zip(tasks, correct, strict=True):
        counts[task].append(len(samples))
    return min(sorted(of_task)[len(of_task) // 2] for of_task in counts.values())


def whole(
    runs: Sequence[Sequence[list[int]]], strata: Sequence[Any], k: int
) -> tuple[list[list[list[int]]], list[Any]]:
    """The problems that every run answered ``k`` times or more, which Pass@k is of.

    Correctness is 0/1 by [runs, problems, samples], and strata are the benchmark of each problem.

    Example:
      >>> whole([[[1, 0], [1]], [[0, 0], [1, 1]]], ["a", "b"], 2)
      ([[[1, 0]], [[0, 0]]], ['a'])
    """
    kept = [i for i in range(len(strata)) if all(len(run[i]) >= k for run in runs)]
    return [[run[i] for i in kept] for run in runs], [strata[i] for i in kept]


def _scores(correct: list[list[int]], strata: Sequence[Any]) -> dict[str, Any]:
    k = usual(correct, strata)
    mean = {f"mean@{k}": vars(stats.mean_interval(correct, strata))}
    if any(one not in (0, 1) for right in correct for one in right):
        return {**mean, "problems": len(correct)}
    (full,), of_full = whole([correct], strata, k)
    return {
        **mean,
        f"pass@{k}": vars(stats.pass_interval(full, k, of_full)),
        "problems": len(correct),
        "curve": {
            "k": list(range(1, k + 1)),
            "mean": stats.mean_curve(full, of_full)[:k].tolist(),
            "pass": stats.pass_curve(full, of_full)[:k].tolist(),
        },
    }


def _endings(rows: Sequence[Row]) -> dict[str, float]:
    """How answers end: shares of completions, and their mean length in tokens."""
    return {
        "truncated": sum(row["truncated"] for row in rows) / len(rows),
        "no_answer": sum(row["extracted"] is None for row in rows) / len(rows),
        "timeout": sum(row["judged"] == "timeout" for row in rows) / len(rows),
        "length": sum(row["tokens"] for row in rows) / len(rows),
    }


def digest(rows: Iterable[Row]) -> str:
    """A digest of all completions of an evaluation, independent of their order."""
    texts = sorted(f"{r['task']}\t{r['id']}\t{r['k']}\t{r['text']}" for r in rows)
    return fingerprint("\n".join(texts)) if texts else ""


def _rewards(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Mean of each reward over problems, of each problem over its completions, by label."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for label, value in (row.get("rewards") or {}).items():
            if value is not None:
                values[label][row["id"]].append(value)
    rewards: dict[str, dict[str, float | None]] = {}
    for label, problems in values.items():
        means = [fmean(each) for each in problems.values()]
        rewards[label] = {"value": fmean(means), "low": None, "high": None}
        if len(means) > 1:
            interval = stats.RunSummary.of(means).interval()
            rewards[label] |= {"low": interval.low, "high": interval.high}
    return rewards
