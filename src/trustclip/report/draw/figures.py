"""Figures drawn with matplotlib, once for files and for pages: the only module that uses it."""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from markupsafe import Markup

from trustclip.constraints.base import Method
from trustclip.report.draw.inline import panels_for_page
from trustclip.report.draw.marks import (
    BANDS,
    GRID,
    NEUTRAL,
    PALETTE,
    QUIET,
    Figure,
    Mark,
    Panel,
)
from trustclip.report.weights import curve
from trustclip.stats.scores import Floats
from trustclip.support.text import harmless

#: Settings of every picture, for `matplotlib.pyplot.rc_context`.
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": QUIET,
    "axes.facecolor": "none",
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.bottom": False,
    "xtick.minor.bottom": False,
    "ytick.left": False,
    "ytick.minor.left": False,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "svg.hashsalt": "trustclip",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Picture:
    """A figure as it was drawn: the whole sheet for files, and for a page each of its panels.

    Args:
      pdf: makes the sheet once more, for a paper.
      shared: SVG that holds what the panels refer to, and shows nothing.
    """

    svg: str
    pdf: Callable[[], bytes]
    panels: Sequence[Markup]
    shared: Markup

    def save(self, figure: Figure, folder: Path) -> list[Path]:
        """Write the sheet as PDF and as SVG, for a paper."""
        paths = [folder / f"{figure.key}.pdf", folder / f"{figure.key}.svg"]
        paths[0].write_bytes(self.pdf())
        paths[1].write_text(self.svg, encoding="utf-8")
        return paths


def save(figure: Figure, folder: Path) -> list[Path]:
    """Draw a figure into a PDF and an SVG; returns their paths."""
    return draw(figure).save(figure, folder)


def draw(figure: Figure) -> Picture:
    """Draw a figure: its panels on a sheet, with a legend below them."""
    plain = figure.panels
    figure = replace(figure, panels=_literal(plain))
    columns = 2 if len(plain) == 4 else min(len(plain), 3)
    wide, tall = _size(figure.panels)
    lines = -(-len(plain) // columns)
    names = {m.name for p in figure.panels if _in_legend(p) for m in p.marks if m.style in _LISTED}
    below = LEGEND * -(-len(names) // _columns(wide * columns, names)) if len(names) > FEW else 0
    with plt.rc_context({**STYLE, "svg.hashsalt": f"trustclip {figure.key}"}):
        sheet, axes = plt.subplots(
            lines, columns, figsize=(wide * columns, tall * lines + below),
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for number, (axis, panel) in enumerate(zip(axes.flat, figure.panels, strict=False)):
            axis.set_gid(f"panel-{number}")
            _draw(axis, panel, wide)
        for axis in axes.flat[len(plain) :]:
            axis.set_axis_off()
        # A panel of areas, or of one group alone, has names of its own.
        pairs = zip(axes.flat, figure.panels, strict=False)
        _legend(sheet, [axis for axis, panel in pairs if _in_legend(panel)])
        sheet.draw_without_rendering()
        sheet.set_layout_engine(None)  # laid out once, for both files
        # Places in points from the upper left corner, as those of an SVG.
        boxes = [axis.get_tightbbox().padded(3).extents * 72 / sheet.dpi for axis in axes.flat]
        top = 72 * sheet.get_figheight()
        svg = as_svg(sheet)
    places = [(x, top - y1, x1 - x, y1 - y) for x, y, x1, y1 in boxes]
    return Picture(svg, partial(_as_pdf, sheet), *panels_for_page(svg, plain, places))


def _as_pdf(sheet: Any) -> bytes:
    file = io.BytesIO()
    with plt.rc_context(STYLE):
        sheet.savefig(file, format="pdf", metadata={"CreationDate": None})
    return file.getvalue()


def _size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Inches of a panel: wider where there are few, and low where each is of one group."""
    wide = {1: 5.0, 2: 3.9, 4: 3.9}.get(len(panels), 3.1)
    wide = 2.5 if panels[0].group is not None else wide
    return wide, max(0.5 + 0.6 * wide, *(0.8 + 0.3 * len(p.marks) for p in panels if p.across), 0)


def _literal(value: Any) -> Any:
    """A value whose texts are drawn as they are: between two dollars would stand a formula."""
    if isinstance(value, str):
        return harmless(value).replace("$", r"\$")
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _literal(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, list | tuple):
        return type(value)(map(_literal, value))
    return value


#: Marks that a legend names; inches of a line of it; names that fit without room of their own.
_LISTED = ("line", "area")
LEGEND, FEW = 0.19, 6
#: More labels than these stand aslant, where they do not run into one another.
CROWDED = 5


def _draw(axis: Any, panel: Panel, wide: float) -> None:
    base: dict[Any, float] = {}
    crowded = sum(mark.style == "band" for mark in panel.marks) > BANDS
    for number, mark in enumerate(panel.marks):
        if mark.style == "band" and crowded:
            continue
        for place, artist in enumerate(_draw_mark(axis, mark, panel, base)):
            artist.set_gid(f"mark-{number}-{place}")
    title = axis.set_title(textwrap.fill(panel.title, int(13 * wide)))
    title.set_gid("title")
    axis.set_xlabel(panel.x_title)
    axis.set_ylabel(panel.y_title)
    if panel.log_x:
        axis.set_xscale("log", base=2 if panel.ticks else 10)
    if panel.ticks:
        labels = [f"{tick:g}" for tick in panel.ticks]
        axis.set_xticks(list(panel.ticks), labels, rotation=45 * (len(labels) > CROWDED))
        axis.set_xticks([], minor=True)
    if panel.x_range is not None:
        axis.set_xlim(*panel.x_range)
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
    elif not panel.across:
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    if panel.rule is not None:
        axis.axvline(panel.rule, color=QUIET, linewidth=0.8, zorder=0)
    if panel.across:
        axis.grid(visible=False, axis="y")
        axis.margins(y=0.15)


def _in_legend(panel: Panel) -> bool:
    """Whether the panel's lines need the legend: not if its axis or title names them."""
    areas = any(mark.style == "area" for mark in panel.marks)
    return areas or not (panel.across or panel.group is not None)


def _draw_mark(axis: Any, mark: Mark, panel: Panel, base: dict[Any, float]) -> list[Any]:
    """Draw one mark; ``base`` holds the height of the areas drawn so far."""
    colour = QUIET if mark.series == NEUTRAL else PALETTE[mark.series % len(PALETTE)]
    y = [float("nan") if v is None else v for v in mark.y]
    if mark.style == "band":
        band = axis.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.15, linewidth=0)
        return [band]
    if mark.style == "area":
        low = [base.get(x, 0.0) for x in mark.x]
        high = [below + v for below, v in zip(low, y, strict=True)]
        area = axis.fill_between(
            mark.x, low, high, color=colour, alpha=0.7, linewidth=0, label=mark.name
        )
        base.update(zip(mark.x, high, strict=True))
        return [area]
    if mark.style == "points":
        return _draw_points(axis, mark, panel, colour, y)
    if mark.style == "faint":
        return axis.plot(mark.x, y, color=colour, linewidth=0.7, alpha=0.4)
    if mark.style == "dashed":
        return axis.plot(mark.x, y, color=colour, linewidth=1, linestyle="--")
    marker = "o" if len(mark.x) < 30 else ""
    return axis.plot(mark.x, y, color=colour, linestyle=mark.dash, marker=marker,
                     markersize=3, label=mark.name)  # fmt: skip


def _draw_points(axis: Any, mark: Mark, panel: Panel, colour: str, y: list[float]) -> list[Any]:
    """Points with their whiskers; without any, joined by a thin line over named places."""
    at, place = (mark.x, [mark.name]) if panel.across else (y, mark.x)
    reach = None
    if mark.low and None not in mark.low:
        reach = [
            [v - low for v, low in zip(at, mark.low, strict=True)],  # type: ignore[operator]
            [high - v for v, high in zip(at, mark.high, strict=True)],  # type: ignore[operator]
        ]
    whiskers = {"xerr": reach} if panel.across else {"yerr": reach}
    x, y = (at, place) if panel.across else (place, at)  # type: ignore[assignment]
    joined = reach is None and not panel.across and isinstance(mark.x[0], str)
    drawn = axis.errorbar(
        x, y, color=colour, fmt="o-" if joined else "o", markersize=5, linewidth=0.8,
        elinewidth=1.4, **whiskers,
    )  # fmt: skip
    return [drawn.lines[0], *drawn.lines[2]]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    items: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            items.setdefault(label, handle)
    if len(items) > 1:
        columns = _columns(figure.get_figwidth(), items)
        figure.legend(
            items.values(), items.keys(), loc="outside lower center", ncols=columns, frameon=False
        )


def _columns(width: float, names: Iterable[str]) -> int:
    """Columns of a legend: inches of a line's sample and its name in those of the figure."""
    return max(1, int(width / (0.5 + 0.08 * max(map(len, names)))))


def every_gate(chosen: Mapping[str, Method]) -> str:
    """SVG of the gradient weight over the ratio, a panel with its title for each method."""
    curves = {title: curve(one) for title, one in chosen.items()}
    columns = min(len(curves), 4)
    lines = -(-len(curves) // columns)
    size = (9.6, 1.75 * lines) if columns > 1 else (5.0, 3.0)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            lines, columns, figsize=size, sharex=True, sharey=True,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for index, (name, (ratio, positive, negative)) in enumerate(curves.items()):
            axis = axes.flat[index]
            axis.axvline(1, color="#94a3b8", linewidth=0.8)
            axis.axhline(0, color="#94a3b8", linewidth=0.8)
            axis.plot(ratio, positive, color="#2563eb", label="A > 0")
            axis.plot(ratio, negative, color="#dc2626", linestyle="--", label="A < 0")
            axis.set_title(_literal(name), family="monospace")
            axis.set_ylim(-0.3, 3.4)
            if index + columns >= len(curves):
                axis.tick_params(labelbottom=True)
                axis.set_xlabel("ratio new / old")
        for axis in axes.flat[len(curves) :]:
            axis.set_axis_off()
        for axis in axes[:, 0]:
            axis.set_ylabel("weight c")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        if len(curves) < axes.size:
            axes.flat[-1].legend(handles, labels, loc="center", frameon=False)
        else:
            axes.flat[0].legend(handles, labels, loc="upper left", frameon=False)
        return as_svg(figure)


def matrices(names: Sequence[str], panels: Mapping[str, tuple[str, Floats]]) -> str:
    """Square tables of shaded numbers, side by side, as SVG; columns go by the rows' numbers.

    By the title of each: format of a number, and the numbers, from 0 to 1 or NaN, [row, column].
    """
    count = len(names)
    side = 0.42 * count + 0.6
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(side * len(panels) + 0.09 * max(map(len, names)), side),
            sharey=True, layout="constrained", squeeze=False,
        )  # fmt: skip
        for axis, (title, (form, values)) in zip(axes.flat, panels.items(), strict=True):
            axis.imshow(values, cmap="Blues", vmin=0, vmax=1.6)
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    text = "-" if math.isnan(value) else format(value, form)
                    axis.text(j, i, text, ha="center", va="center", fontsize=8)
            axis.set_title(title)
            axis.set_xticks(range(count), [str(i + 1) for i in range(count)])
            axis.set_yticks(
                range(count), [f"{_literal(name)}  {i + 1}" for i, name in enumerate(names)]
            )
            axis.tick_params(length=0)
            for spine in axis.spines.values():
                spine.set_visible(False)
        return as_svg(figure)


def as_svg(figure: Any) -> str:
    """A figure as SVG, without the date; the figure is closed."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
