"""The benchmarks' pictures: SVG text from tables."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from trustclip.report.draw.figures import STYLE, as_svg, plt
from trustclip.report.draw.marks import PALETTE

#: Colour of the floor, which nothing can be faster than.
_FLOOR = "#8a8a8a"


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


def bars(panels: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Horizontal bars, a panel under the other; a line marks the floor, the least of the bare ones.

    Args:
      panels: title -> name of a bar -> its length.
      unit: of all lengths.
    """
    with plt.rc_context(STYLE):
        heights = [0.22 * len(values) + 0.6 for values in panels.values()]
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(7.2, sum(heights)), layout="constrained", squeeze=False,
            height_ratios=heights,
        )  # fmt: skip
        for axis, (title, values) in zip(axes.flat, panels.items(), strict=True):
            floor = [length for name, length in values.items() if name.startswith("bare")]
            colours = [_colour(name) for name in values]
            container = axis.barh(list(values), list(values.values()), color=colours, height=0.7)
            if floor:
                axis.axvline(min(floor), color=_FLOOR, linewidth=0.8, linestyle="--", zorder=0)
            axis.bar_label(container, fmt="%.3g", padding=3, fontsize=7)
            axis.invert_yaxis()
            axis.tick_params(axis="y", labelsize=7)
            axis.grid(visible=False, axis="y")
            axis.set_axisbelow(True)
            axis.margins(x=0.12, y=0.01)
            axis.set_title(title)
            axis.set_xlabel(unit)
        return as_svg(figure)


def _colour(name: str) -> str:
    """Of a bar: the floor's, ours or another's."""
    if name.startswith("bare"):
        return _FLOOR
    return PALETTE[0] if "trustclip" in name else PALETTE[1]


def lines(groups: Mapping[str, Sequence[Sequence[float]]], x: str, y: str) -> str:
    """One line a run, a colour a group.

    Args:
      groups: name -> runs -> values, one after the other.
      x: what the values are numbered by.
      y: what they are.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(5.4, 3.0), layout="constrained")
        for colour, (name, runs) in zip(PALETTE, groups.items(), strict=False):
            for number, run in enumerate(runs):
                label = None if number else name
                axis.plot(range(1, len(run) + 1), run, color=colour, label=label, linewidth=1)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.legend(frameon=False)
        return as_svg(figure)


def _thousands(x: float, _: int) -> str:
    return f"{x / 1000:g}k" if x >= 1000 else f"{x:g}"
