"""Scores without the test problems that the training data hold: AMC beside "AMC, clean"."""

from collections.abc import Mapping, Sequence

from trustclip import stats
from trustclip.findings.groups import (
    Group,
    names,
    overlapping_problems,
    shared_answers,
    trained_on,
)
from trustclip.logs.reader import Evaluation
from trustclip.report.tables import NOTHING, Cell, Table, TableRow
from trustclip.support.text import bracket, percent

_HEAD = ["problems", "Mean@K", "clean problems", "clean Mean@K"]


def clean_table(groups: Sequence[Group]) -> Table | None:
    """Mean@K of each task that the training data overlap: of all its problems, and of the rest.

    Before training, after it, and the gain paired by problem: a part of a task may be harder than
    the whole, so that only the gains compare.
    """
    overlaps = [overlapping_problems(group) for group in groups]
    tasks = list(dict.fromkeys(task for by_task in overlaps for task in by_task))
    rows = []
    for label, group, by_task in zip(names(groups), groups, overlaps, strict=True):
        runs = [run for run in group.scored if run.initial is not None]
        ends = [[getattr(run, moment) for run in runs] for moment in ("final", "initial")]
        gain = [[evaluation for evaluation in end if evaluation is not None] for end in ends]
        for title, moments in (
            (f"{label}, before training", [group.evaluations("initial")]),
            (label, [group.evaluations("final")]),
            (f"{label}, gain in points", gain),
        ):
            cells = [c for task in tasks for c in _cells(group, task, by_task, moments)]
            if any(cell is not NOTHING for cell in cells):
                kind = "base" if title.endswith("before training") else "ours"
                rows.append(TableRow(title, cells, kind, "", group.series))
    if not rows:
        return None
    copies = (
        "The recipe says exclude: none, so the problems found were trained on."
        if any(map(trained_on, groups))
        else "The problems found were left out of training, so neither column was trained on."
    )
    notes = [
        "Clean: without the test problems that were found in the training data. 95 % intervals as "
        f"in the scores; gains are paired by problem. {copies} What the base model was trained on "
        "is not known."
    ]
    head = [(task, _HEAD) for task in tasks]
    return Table("clean", "Scores on clean problems, percent", "method", head, rows, notes)


def _cells(
    group: Group, task: str, held: Mapping[str, set[str]], moments: Sequence[Sequence[Evaluation]]
) -> list[Cell]:
    """Number of problems and Mean@K, or its gain between two moments: all, then clean ones."""
    flat = [evaluation for moment in moments for evaluation in moment]
    runs, _ = shared_answers(flat, task)
    if not runs or not held.get(task) or len({*map(len, moments)}) > 1:
        return [NOTHING] * len(_HEAD)
    kept = [i for i, key in enumerate(flat[0].answers[task]) if key not in held[task]]
    cells = []
    for chosen in ([*range(len(runs[0]))], kept):
        score, sign = NOTHING, ""
        if chosen:
            answers = [[run[i] for i in chosen] for run in runs]
            estimate = stats.mean_interval(answers)
            if len(moments) == 2:
                half = len(answers) // 2
                estimate = stats.paired_difference(answers[:half], answers[half:], same_seeds=True)
                sign = "+" if estimate.value > 0 else ""
            bounds = (None, None) if group.unsteady else (estimate.low, estimate.high)
            score = Cell(sign + percent(estimate.value), bracket(*bounds))
        cells += [Cell(str(len(chosen))), score]
    return cells
