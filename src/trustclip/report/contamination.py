"""Scores without the test problems that the training data hold: AMC beside "AMC, clean"."""

from collections.abc import Mapping, Sequence

from trustclip import stats
from trustclip.report.groups import Group, names, shared_answers
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.runs.answers import overlapping
from trustclip.runs.text import bracket, percent

NOTHING = Cell("-")


def held(group: Group) -> dict[str, set[str]]:
    """Ids of the test problems that the training data of any of its runs hold, by task."""
    found: dict[str, set[str]] = {}
    for run in group.runs:
        for task, ids in overlapping(run.summary.get("overlap") or {}).items():
            found.setdefault(task, set()).update(ids)
    return found


def trained_on(group: Group) -> int:
    """How many training problems that are test problems a run of the group was trained on."""
    return max(
        sum(
            stage["problems"]
            for stage in (run.summary.get("overlap") or {}).values()
            if isinstance(stage, Mapping) and stage.get("excluded") is False
        )
        for run in group.runs
    )


def clean_table(groups: Sequence[Group]) -> Table | None:
    """Mean@K and Pass@K of each task that the training data overlap: all of it, and the rest."""
    found = [held(group) for group in groups]
    tasks = list(dict.fromkeys(task for by_task in found for task in by_task))
    if not tasks:
        return None
    rows = []
    for label, group, by_task in zip(names(groups), groups, found, strict=True):
        cells = [cell for task in tasks for cell in _cells(group, task, by_task.get(task, set()))]
        if any(cell is not NOTHING for cell in cells):
            rows.append(TableRow(label, cells, "ours", "", group.series))
    if not rows:
        return None
    head = [
        (task, ["problems", "Mean@K", "clean problems", "clean Mean@K", "clean Pass@K"])
        for task in tasks
    ]
    notes = [
        "Clean: without the test problems that were found in the training data, word for word or "
        "reworded. 95 % intervals as in the scores.",
        "The problems found were left out of training, unless the recipe says exclude: none. "
        "What the base model was trained on is not known.",
    ]
    return Table("clean", "Scores on clean problems, percent", "method", head, rows, notes)


def _cells(group: Group, task: str, ids: set[str]) -> list[Cell]:
    """Problems and Mean@K of the whole task; problems, Mean@K and Pass@K of its clean part."""
    evaluations = group.evaluations("final")
    runs, _ = shared_answers(evaluations, task)
    if not runs or not ids:
        return [NOTHING] * 5
    kept = [i for i, key in enumerate(evaluations[0].answers[task]) if key not in ids]
    clean = [[run[i] for i in kept] for run in runs]
    whole = [Cell(str(len(runs[0]))), _cell(group, stats.mean_interval(runs))]
    if not kept:
        return [*whole, Cell("0"), NOTHING, NOTHING]
    k = int(stats.tally(clean).total.min())
    found = stats.mean_interval(clean), stats.pass_interval(clean, k)
    return [*whole, Cell(str(len(kept))), *(_cell(group, interval) for interval in found)]


def _cell(group: Group, interval: stats.Interval) -> Cell:
    bounds = (None, None) if group.unsteady else (interval.low, interval.high)
    return Cell(percent(interval.value, 1), bracket(*bounds))
