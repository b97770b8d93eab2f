"""The picture of a benchmark: SVG text from tables."""

from collections.abc import Sequence
from typing import Protocol

from trustclip.report.draw.figures import STYLE, as_svg, plt
from trustclip.report.draw.marks import PALETTE


class SizeTable(Protocol):
    """A table whose first column is a size and whose others are named ``what, unit``."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> Sequence[Sequence[str | float | int | None]]: ...


def scaling(tables: Sequence[SizeTable]) -> str:
    """Seconds and memory over one size each: a row of two panels per table."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(tables), 2, figsize=(7.2, 2.6 * len(tables)), layout="constrained", squeeze=False
        )
        for line, table in zip(axes, tables, strict=True):
            sizes = [row[0] for row in table.rows]
            columns = [column.rsplit(", ", 1) for column in table.columns[1:]]
            units = list(dict.fromkeys(unit for _, unit in columns))
            names = list(dict.fromkeys(name for name, _ in columns))
            for axis, unit in zip(line, units, strict=True):
                for index, (name, its) in enumerate(columns, start=1):
                    if its == unit:
                        values = [row[index] for row in table.rows]
                        colour = PALETTE[names.index(name)]
                        axis.plot(sizes, values, "o-", color=colour, markersize=3, label=name)
                axis.set_xlabel(table.columns[0])
                axis.set_ylabel(unit)
                axis.set_ylim(bottom=0)
                axis.set_xlim(left=0)
                axis.xaxis.set_major_formatter(_thousands)
        axes[0, 0].legend(frameon=False)
        return as_svg(figure)


def _thousands(x: float, _: int) -> str:
    return f"{x / 1000:g}k" if x >= 1000 else f"{x:g}"
