"""A sheet of figures as parts of a page: its panels apart, in the page's colours, and speaking."""

import re
from collections.abc import Sequence
from functools import partial

from markupsafe import Markup, escape

from trustclip.report.draw.marks import GRID, PALETTE, QUIET, Panel

#: What stands in a page for each colour of a sheet: the page knows a light and a dark one.
_COLOURS = {GRID: "var(--line)", QUIET: "var(--muted)"} | {
    colour.lower(): f"var(--series-{n})" for n, colour in enumerate(PALETTE)
}


def panels_for_page(
    svg: str, panels: Sequence[Panel], places: Sequence[tuple[float, ...]]
) -> tuple[list[Markup], Markup]:
    """Each panel of a sheet as an SVG of its own in the page's colours, and what they share."""
    text = re.sub(r"\n *", "\n", re.sub(r" font-family: [^\";]*;", "", svg))
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: _DIGITS.sub(r"\1", found[0]), text)
    text = re.sub("|".join(_COLOURS), lambda found: _COLOURS[found[0]], text)
    parts = re.split(r'<g id="panel-\d+">', text)
    # The last definitions are of clipped areas, and follow all panels.
    shared = text[text.rindex("<defs>") : text.rindex("</svg>")]
    pages = []
    for part, panel, place in zip(parts[1:], panels, places, strict=False):
        box = " ".join(f"{number:.0f}" for number in place)
        name = escape(f"{panel.title}: {panel.y_title} by {panel.x_title}")
        body = _MARK.sub(partial(_named, panel), _closed(part))
        body = re.sub(r'<g id="title[^"]*">', '<g class="title">', body)
        body = re.sub(r'<g id="[^"]*">', "<g>", body)
        pages.append(
            Markup(
                f'<svg class="chart" viewBox="{box}" style="max-width: {1.5 * place[2]:.0f}px" '
                f'role="img" aria-label="{name}">{body}</svg>'
            )
        )
    return pages, Markup(
        f'<svg class="shared" width="0" height="0" aria-hidden="true">{shared}</svg>'
    )


def _closed(part: str) -> str:
    """The content of a group up to its end, with the end of the group."""
    depth = 1
    for tag in re.finditer(r"<(/?)g[ >]", part):
        depth += -1 if tag[1] else 1
        if not depth:
            return f"<g>{part[: tag.start()]}</g>"
    return part


#: Digits of a place that no screen shows.
_DIGITS = re.compile(r"(\.\d\d)\d+")
#: What is drawn of a mark, up to the next group that has a name.
_MARK = re.compile(r'<g id="mark-(\d+)-\d+">(.*?)(?=<g id="|$)', re.DOTALL)
_POINT = re.compile(r"<use ([^>]*)/>")


def _named(panel: Panel, found: re.Match[str]) -> str:
    """A mark that says its name, and the value of each of its points, under the pointer."""
    mark = panel.marks[int(found[1])]
    group = mark.series if mark.group is None else mark.group
    values = mark.x if panel.across else mark.y
    # A band has two edges and no values.
    points = [(x, v) for x, v in zip(mark.x, values, strict=False) if v is not None and v == v]
    texts = iter(
        escape(f"{mark.name}: {v:.4g}" + ("" if panel.across else f" at {_written(x)}"))
        for x, v in points
    )
    body = found[2]
    if len(_POINT.findall(body)) == len(points):
        body = _POINT.sub(lambda use: f"<use {use[1]}><title>{next(texts)}</title></use>", body)
    return f'<g data-group="{group}"><title>{escape(mark.name)}</title>{body}'


def _written(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:g}"
