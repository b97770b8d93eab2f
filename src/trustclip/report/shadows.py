"""Shadow gates in a report: each method beside the acting one."""

import math
from collections.abc import Sequence

from trustclip.findings.groups import Group
from trustclip.findings.shadows import Matrix, matrix, mean_metrics
from trustclip.report.tables import Cell, Table, TableRow
from trustclip.support.text import percent


def tables(groups: Sequence[Group]) -> list[Table]:
    """For each group with shadows: what they would have cut."""
    built = []
    for number, group in enumerate(groups):
        rows = [row for run in group.runs for row in run.training]
        overlap = matrix(group.label, mean_metrics(rows))
        if overlap is not None:
            built.append(_measures(overlap, group, number))
    return built


def _measures(overlap: Matrix, group: Group, number: int) -> Table:
    cells = [_share(overlap.gated[0]), *[Cell("-")] * 4]
    rows = [TableRow(_numbered(0, overlap.names[0]), cells, note="acting", series=group.series)]
    for i, name in enumerate(overlap.names[1:], start=1):
        precision, recall = overlap.of_acting(i)
        cells = [_share(overlap.gated[i]), _share(precision, 1), _share(recall, 1)]
        cells += [_share(overlap.jaccard[0][i], 1), _number(overlap.cosine[0][i])]
        rows.append(TableRow(_numbered(i, name), cells))
    head = ["cut %", "precision %", "recall %", "Jaccard %", "cosine of updates"]
    note = (
        "Numbers are means over the logged updates. Precision is the share of the shadow's cuts "
        "that the acting method cut, too; recall is the share of the acting method's cuts that the "
        "shadow cuts, too. In a training by a shadow the tokens would have been others."
    )
    title = f"What other methods would have cut in the runs of {group.label}"
    return Table(f"shadows-{number}", title, "method", [("", head)], rows, [note])


def _numbered(i: int, name: str) -> str:
    return f"{i + 1}\N{NO-BREAK SPACE}{name}"


def _share(value: float, digits: int = 2) -> Cell:
    return Cell(percent(value, digits))


def _number(value: float) -> Cell:
    return Cell("-" if math.isnan(value) else f"{value:.3f}")
