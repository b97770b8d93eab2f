"""The lab's results as a table: means over seeds, differences paired by seed, collapses."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from trustclip.stats import Interval, RunSummary
from trustclip_lab.stack.results import SEED
from trustclip_lab.stack.settings import LabSettings

Rows = Sequence[Mapping[str, Any]]


def cells_of(rows: Rows, names: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Rows by the values of some columns, in order of appearance."""
    cells: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(str(row[name]) for name in names), []).append(row)
    return cells


def mean(rows: Rows, column: str, level: float = 0.95) -> Interval:
    """Mean of a column over runs, with Student's interval; nan bounds for a single run."""
    values = [float(row[column]) for row in rows]
    if len(values) < 2:
        return Interval(values[0], float("nan"), float("nan"))
    return RunSummary.of(values).interval(level)


def paired(rows: Rows, reference: Rows, column: str, level: float = 0.95) -> Interval:
    """Mean difference of a column over the seeds of two cells, paired by seed.

    Example:
      >>> ours = [{"seed": 1, "end": 0.5}, {"seed": 2, "end": 0.4}]
      >>> theirs = [{"seed": 2, "end": 0.3}, {"seed": 1, "end": 0.4}]
      >>> round(paired(ours, theirs, "end").value, 3)
      0.1
    """
    theirs = {str(row[SEED]): float(row[column]) for row in reference}
    differences = [
        {column: float(row[column]) - theirs[str(row[SEED])]}
        for row in rows
        if str(row[SEED]) in theirs
    ]
    return mean(differences, column, level)


def table(settings: LabSettings, rows: Rows) -> Table:
    """Every cell with its interval, its difference from the reference, and its collapses."""
    swept = [path.rpartition(".")[2] for path in settings.sweep]
    groups = cells_of(rows, ["method", *swept])
    reference = settings.reference or next(iter(groups))[0]
    level = 1 - 0.05 / max(len(groups) - len(cells_of(rows, swept)), 1)
    names = ["method", *swept, "end %", f"minus {reference}", "collapsed", "sampler/k3"]
    grid = Table(*names, box=None, pad_edge=False)
    for key, members in groups.items():
        against = groups.get((reference, *key[1:]))
        own = key[0] == reference or against is None
        difference = "" if own else _points(paired(members, against or [], "end", level), "+")
        fallen = f"{sum(int(row['collapsed']) for row in members)} of {len(members)}"
        distance = f"{mean(members, 'sampler/k3').value:.2g}"
        grid.add_row(*key, _points(mean(members, "end")), difference, fallen, distance)
    first = settings.first_seed
    grid.caption = (
        f"{settings.task}: seeds {first} to {first + settings.seeds - 1}, {settings.generations} "
        f"generations of {settings.depth} updates. end: mean of the last {settings.tail} "
        "evaluations, ± 95 % over seeds. minus: paired by seed, simultaneous 95 % over all rows. "
        f"collapsed: {100 * settings.collapse:g} points or more below the best at the end."
    )
    return grid


def _points(interval: Interval, sign: str = "") -> str:
    half = 100 * (interval.high - interval.value)
    return f"{100 * interval.value:{sign}.1f} ± {half:.1f}"
