"""The table of learning curves: areas, collapses, and times to a score."""

from collections.abc import Sequence

from trustclip.findings.facts import ALPHA, LEFT
from trustclip.findings.groups import Group, names
from trustclip.findings.learning import Learning, Number
from trustclip.report.results import p_text
from trustclip.report.tables import NOTHING, Cell, Table, TableRow
from trustclip.support.text import bracket, percent

#: This unit writes a number as it is; shares are written in percent.
_ONE = 0.01


def table_of(
    groups: Sequence[Group], curves: Sequence[Learning | None], reaches: float | None
) -> Table | None:
    """A row for each group of a report that has a learning curve; None of a single run."""
    if sum(len(group.runs) for group in groups) < 2 or not any(curves):
        return None
    rows = []
    for name, group, curve in zip(names(groups), groups, curves, strict=True):
        if curve is not None:
            note = f"{len(group.scored)} seeds" if len(group.scored) > 1 else ""
            rows.append(TableRow(name, _cells(curve), note=note, series=group.series))
    head = [("area", ["mean", "difference", "p (Holm)"]), ("", ["collapsed"])]
    notes = [
        "Area is the mean score of a run on its way, in percent: the area under the learning curve "
        "of Mean@K, divided by its length (trapezoidal rule over the updates of all evaluations). "
        "Differences are to the reference, and p is corrected for all of them (Holm). Collapsed "
        f"is the share of runs that ended below {percent(LEFT, 0)} % of their best "
        "evaluation, in percent. Brackets hold 95 % intervals: of areas as of final scores, of "
        "rates Clopper and Pearson's."
    ]
    if reaches is not None:
        head += [(f"to {percent(reaches, 0)} %", ["reached", "updates", "difference", "p (Holm)"])]
        notes.append(
            f"Reached is the share of runs that an evaluation found at {percent(reaches, 0)} % or "
            "more, in percent. Updates are counted until the first such evaluation, or to the end "
            "of a run that never got there (restricted mean); intervals are over seeds, and seeds "
            "are paired in the differences."
        )
    return Table("learning", "Learning curves", "method", head, rows, notes)


def _cells(curve: Learning) -> list[Cell]:
    cells = [_cell(curve.area), *_difference(curve.area_minus), _cell(curve.collapsed)]
    if curve.reached is not None:
        times = _cell(curve.time, _ONE), *_difference(curve.time_minus, _ONE)
        cells += [_cell(curve.reached), *times]
    return cells


def _cell(number: Number | None, unit: float = 1.0) -> Cell:
    """A number with its interval, times 100 like a share, in a unit."""
    if number is None:
        return NOTHING
    value, low, high = (
        None if (part := number[name]) is None else part * unit for name in ("value", "low", "high")
    )
    return Cell(percent(value), bracket(low, high))


def _difference(number: Number | None, unit: float = 1.0) -> list[Cell]:
    if number is None:
        return [NOTHING, NOTHING]
    p = number["p_holm"]
    return [_cell(number, unit), Cell(p_text(p), strong=p is not None and p <= ALPHA)]
