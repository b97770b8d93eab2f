"""The table of a suite as Markdown, and what a terminal has room for."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from trustclip.report.results import NOTHING, bracket, percent
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.report.tables import markdown as written

Row = Mapping[str, Any]
Metrics = tuple[str, str]


def markdown(table: Mapping[str, Any]) -> str:
    """Markdown of what `trustclip.suite.table.Results.table` holds: scores, differences to the
    reference and, of several benchmarks, the scores on each.
    """
    k = table["k"][0] if len(table["k"]) == 1 else "K"
    metrics = f"Mean@{k}", f"Pass@{k}"
    tables = [_scores(table, metrics), _differences(table, metrics)]
    if len(table["problems"]) > 1:
        tables.append(_benchmarks(table, metrics))
    parts = [f"# {table['name']}\n", _caption(table, metrics), *map(written, tables)]
    return "\n".join(parts)


def overview(table: Mapping[str, Any]) -> Grid:
    """Mean@K at the end and what its difference to the reference is worth, for a terminal."""
    grid = Grid(box=None, pad_edge=False)
    for header in ("method", "runs", "Mean@K %", f"less {table['reference']}", "p (Holm)", ""):
        grid.add_column(header, overflow="fold")
    for setting, section in _sections(table):
        for one in section:
            grid.add_row(f"[bold]{one.label}[/]")
        for row in _rows(table, setting):
            found = next(iter(row["difference"].values()), None)
            gap = _difference(found) if found else [NOTHING, NOTHING, Cell("")]
            cells = [_pair(row["final"])[0], *gap]
            runs = f"{len(row['seeds'])}/{len(table['seeds'])}"
            grid.add_row(row["label"], runs, *(escape(f"{c.text} {c.note}") for c in cells))
    return grid


def _caption(table: Mapping[str, Any], metrics: Metrics) -> str:
    problems = table["problems"]
    named = " + ".join(f"{count} {task}" for task, count in problems.items())
    average = ", macro-averaged over the benchmarks" if len(problems) > 1 else ""
    return (
        f"Made by `{table['command']}`. {_listed(table['steps'])} updates a run; seeds "
        f"{_listed(table['seeds'])}. {' and '.join(metrics)} in percent{average}: K = "
        f"{_listed(table['k'])} samples of each of {sum(problems.values())} problems "
        f"({named or 'none'}), with 95 % intervals over problems and, of two runs or more, "
        "training seeds.\n"
    )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "no"


def _scores(table: Mapping[str, Any], metrics: Metrics) -> Table:
    rows = []
    for setting, section in _sections(table):
        rows += section
        if before := table["before"][setting]:
            rows.append(TableRow("before training", [*_pair(before), *[NOTHING] * 3], "base"))
        for row in _rows(table, setting):
            gated = NOTHING if row["gated"] is None else Cell(f"{row['gated']:.2%}")
            cells = [*_pair(row["final"]), *_pair(row["best"]), gated]
            runs = f"{len(row['seeds'])} of {len(table['seeds'])} runs"
            rows.append(TableRow(row["label"], cells, note=runs))
    head = [("final", list(metrics)), ("best", list(metrics)), ("", ["gated"])]
    notes = [
        f"Best is the evaluation with a run's highest {metrics[0]}: chosen on the problems that it "
        "is reported on, it is too high, and no ground for a comparison. Gated is the share of "
        "tokens whose gradient the constraint cut, mean over training."
    ]
    return Table("scores", "Scores", "method", head, rows, notes)


def _differences(table: Mapping[str, Any], metrics: Metrics) -> Table:
    rows = []
    for setting, section in _sections(table):
        rows += section
        for row in _rows(table, setting):
            found = list(row["difference"].values())
            empty = "reference" if row["label"] == table["reference"] else "nothing to compare yet"
            cells = [cell for one in found for cell in _difference(one)]
            cells = cells or [NOTHING, NOTHING, Cell(empty)] * 2
            rows.append(TableRow(row["label"], cells))
    head = [(metric, ["points", "p (Holm)", "verdict"]) for metric in metrics]
    title = f"Final evaluation against {table['reference']}"
    return Table("differences", title, "method", head, rows, [_differences_note(table)], wide=True)


def _difference(found: Row) -> list[Cell]:
    if "value" not in found:
        return [NOTHING, NOTHING, Cell(found["verdict"])]
    p = "-" if isnan(found["p_holm"]) else f"{found['p_holm']:.4f}"
    points = Cell(percent(found["value"]), bracket(found["low"], found["high"]))
    return [points, Cell(p), Cell(found["verdict"])]


def _differences_note(table: Mapping[str, Any]) -> str:
    compared = [
        one for row in table["rows"] for one in row["difference"].values() if "value" in one
    ]
    number = len(compared) // 2
    note = (
        "Paired by problem, on the runs of the seeds that both have finished; p is corrected for "
        f"{number} comparison{'s' * (number != 1)} of each metric (Holm). A difference that is not "
        "resolved is no evidence that there is none."
    )
    if any(found["seeds"] == 1 for found in compared):
        note += " Of one run each, the interval leaves out how much training runs differ."
    return note


def _benchmarks(table: Mapping[str, Any], metrics: Metrics) -> Table:
    tasks = list(table["problems"])
    rows = []
    for setting, section in _sections(table):
        rows += section
        for row in _rows(table, setting):
            cells = [cell for task in tasks for cell in _pair(row["tasks"].get(task, {}))]
            rows.append(TableRow(row["label"], cells))
    head = [(task, list(metrics)) for task in tasks]
    return Table("benchmarks", "Final evaluation by benchmark", "method", head, rows)


def _sections(table: Mapping[str, Any]) -> Iterator[tuple[str, list[TableRow]]]:
    """Every setting, and the row that names it where there are several."""
    for setting in table["before"]:
        yield setting, [TableRow(setting, kind="section")] if len(table["before"]) > 1 else []


def _rows(table: Mapping[str, Any], setting: str) -> list[Row]:
    return [row for row in table["rows"] if row["setting"] == setting]


def _pair(scores: Row) -> list[Cell]:
    """Mean@K and Pass@K with their intervals."""
    cells = [Cell(percent(s["value"]), bracket(s["low"], s["high"])) for s in scores.values()]
    return cells or [NOTHING, NOTHING]
