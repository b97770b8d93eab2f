"""Scores without the test problems that the training data hold: AMC beside "AMC, clean"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trustclip import stats
from trustclip.findings.contamination import overlapping_problems, trained_on
from trustclip.findings.groups import Group, names, shared_answers
from trustclip.logs.reader import Evaluation
from trustclip.report.tables import NOTHING, Cell, Table, TableRow
from trustclip.support.text import bracket, percent


def clean_table(groups: Sequence[Group]) -> Table | None:
    """Mean@K and Pass@K of each task that the training data overlap: all of it, and the rest.

    Before training, after it, and the gain paired by problem: a part of a task may be harder than
    the whole, so that only the gains compare.
    """
    overlaps = [overlapping_problems(group) for group in groups]
    tasks = list(dict.fromkeys(task for by_task in overlaps for task in by_task))
    if not tasks:
        return None
    rows = []
    for label, group, by_task in zip(names(groups), groups, overlaps, strict=True):
        for title, moments in (
            (f"{label}, before training", ("initial",)),
            (label, ("final",)),
            (f"{label}, gain in points", ("final", "initial")),
        ):
            parts = [_Part(group, task, by_task.get(task, set()), moments) for task in tasks]
            cells = [cell for part in parts for cell in part.cells()]
            if any(cell is not NOTHING for cell in cells):
                kind = "base" if moments == ("initial",) else "ours"
                rows.append(TableRow(title, cells, kind, "", group.series))
    if not rows:
        return None
    head = [
        (task, ["problems", "Mean@K", "clean problems", "clean Mean@K", "clean Pass@K"])
        for task in tasks
    ]
    left_out = not any(map(trained_on, groups))
    notes = [
        "Clean: without the test problems that were found in the training data, word for word or "
        "reworded. 95 % intervals as in the scores; gains are paired by problem.",
        "The problems found were left out of training, so neither column was trained on: where the "
        "gains agree, the gain is not one of memory."
        if left_out
        else "The recipe says exclude: none, so the problems found were trained on.",
        "What the base model was trained on is not known.",
    ]
    title = (
        "Scores with and without the problems that were left out of training, percent"
        if left_out
        else "Scores on clean problems, percent"
    )
    return Table("clean", title, "method", head, rows, notes)


@dataclass(frozen=True)
class _Part:
    """A task of a group, at one moment, or the later minus the earlier of two."""

    group: Group
    task: str
    ids: set[str]
    moments: Sequence[str]

    def cells(self) -> list[Cell]:
        """Problems and Mean@K of the whole task; problems, Mean@K and Pass@K of its clean part."""
        evaluations = [self._evaluations(moment) for moment in self.moments]
        flat = [e for part in evaluations for e in part]
        runs, _ = shared_answers(flat, self.task)
        if not runs or not self.ids or len({*map(len, evaluations)}) > 1:
            return [NOTHING] * 5
        kept = [i for i, key in enumerate(flat[0].answers[self.task]) if key not in self.ids]
        clean = [[run[i] for i in kept] for run in runs]
        whole = [Cell(str(len(runs[0]))), self._score(runs)]
        if not kept:
            return [*whole, Cell("0"), NOTHING, NOTHING]
        k = int(stats.tally(clean).total.min())
        return [*whole, Cell(str(len(kept))), self._score(clean), self._score(clean, k)]

    def _evaluations(self, moment: str) -> list[Evaluation]:
        if len(self.moments) == 1:
            return self.group.evaluations(moment)
        runs = [run for run in self.group.scored if run.initial is not None]
        return [e for run in runs if (e := getattr(run, moment)) is not None]

    def _score(self, runs: Sequence[Any], k: int | None = None) -> Cell:
        half, sign = len(runs) // 2, ""
        if len(self.moments) == 1:
            estimate = stats.mean_interval(runs) if k is None else stats.pass_interval(runs, k)
        else:
            estimate = stats.paired_difference(runs[:half], runs[half:], k=k, same_seeds=True)
            sign = "+" if estimate.value > 0 else ""
        bounds = (None, None) if self.group.unsteady else (estimate.low, estimate.high)
        return Cell(sign + percent(estimate.value), bracket(*bounds))
