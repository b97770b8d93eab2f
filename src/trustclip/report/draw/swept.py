"""Figures of methods over a setting that their suite sweeps, such as the learning rate."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trustclip.findings.comparison import Compared
from trustclip.findings.groups import Group
from trustclip.report.draw.marks import Figure, Mark, Panel
from trustclip.report.draw.plots import mean_gated, slug
from trustclip.support.text import title_of

#: Distance of two methods at one value, and most of all of them together, as shares of the distance
#: to the next value: whiskers that lie on one another cannot be read.
APART, TOGETHER = 0.06, 0.5


def swept_figures(groups: Sequence[Group], compared: Sequence[Compared]) -> list[Figure]:
    """Final scores, differences to the reference and gated shares over each swept number."""
    figures = []
    for (path, _), members in _families(groups).items():
        values = sorted({_value(group, path) for group in members})
        if len(values) < 2:
            continue
        name, labels = path.rpartition(".")[2], list(dict.fromkeys(g.label for g in members))
        lines = [
            _Line([g for g in members if g.label == label], path, _shift(i, len(labels), values))
            for i, label in enumerate(labels)
        ]
        panels = [
            Panel(title, name, unit, marks, ticks=values)
            for title, unit, marks in _panels(lines, compared)
            if marks
        ]
        key = "-".join(["sweep", path, *([str(len(figures) + 1)] if figures else [])])
        caption = (
            f"Final evaluation of each method at each value of {path}, with 95 % intervals "
            "clustered by problem and seed; points are shifted slightly so that they do not "
            "overlap. Differences are to the reference at the same value, paired, and not "
            "corrected for multiple comparisons."
        )
        figures.append(Figure(slug(key), f"Methods against {name}", caption, panels))
    return figures


class _Line:
    """The groups of one method in the order of the swept value."""

    def __init__(self, groups: Sequence[Group], path: str, shift: float) -> None:
        self.groups = sorted(groups, key=lambda group: _value(group, path))
        self.x = [_value(group, path) + shift for group in self.groups]

    def marks(self, y: Sequence[float | None], whiskers: Sequence[Any] = ()) -> Iterator[Mark]:
        """A line through values in percent, and their intervals (low, high)."""
        first = self.groups[0]
        known = [(x, v) for x, v in zip(self.x, y, strict=True) if v is not None]
        if not known:
            return
        at, values = [x for x, _ in known], [v for _, v in known]
        yield Mark("line", at, values, first.label, first.series)
        if whiskers:
            kept = [w for w, v in zip(whiskers, y, strict=True) if v is not None]
            low, high = [low for low, _ in kept], [high for _, high in kept]
            yield Mark("points", at, values, first.label, first.series, low, high)


def _panels(
    lines: Sequence[_Line], compared: Sequence[Compared]
) -> Iterator[tuple[str, str, list[Mark]]]:
    metric = next((g.metrics[0] for line in lines for g in line.groups if g.metrics), "")
    yield title_of(metric), "percent", [mark for line in lines for mark in _scores(line, metric)]
    found = {(c.group.setting, c.group.label): c for c in compared if c.difference is not None}
    if found:
        label = next(iter(found.values())).reference.label
        marks = [mark for line in lines for mark in _differences(line, found)]
        yield f"Difference to {label}", "points", marks
    gated = [[mean_gated(group) for group in line.groups] for line in lines]
    marks = [
        mark
        for line, shares in zip(lines, gated, strict=True)
        for mark in line.marks([None if share is None else 100 * share for share in shares])
    ]
    yield "Gated tokens", "percent of tokens", marks


def _scores(line: _Line, metric: str) -> Iterator[Mark]:
    found = [group.estimate(None, metric) for group in line.groups]
    y = [None if e is None else 100 * e.value for e in found]
    return line.marks(y, [(None, None) if e is None else _percent(e) for e in found])


def _differences(line: _Line, found: Mapping[tuple[str, str], Compared]) -> Iterator[Mark]:
    if all(group.is_reference for group in line.groups):
        return line.marks([0.0] * len(line.groups))
    here = [found.get((group.setting, group.label)) for group in line.groups]
    each = [None if one is None else one.difference for one in here]
    y = [None if d is None else 100 * d.value for d in each]
    return line.marks(y, [(None, None) if d is None else _percent(d) for d in each])


def _percent(found: Any) -> tuple[float | None, float | None]:
    low, high = (None if end is None else 100 * end for end in (found.low, found.high))
    return low, high


def _families(groups: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    """Groups by swept path and the rest of their setting."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        swept = group.runs[0].swept
        for path, value in swept.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {key: other for key, other in swept.items() if key != path}
                found.setdefault((path, f"{group.model} {others}"), []).append(group)
    return found


def _value(group: Group, path: str) -> float:
    return float(group.runs[0].swept[path])


def _shift(place: int, many: int, values: Sequence[float]) -> float:
    nearest = min(after - before for before, after in pairwise(values))
    return (place - (many - 1) / 2) * min(APART, TOGETHER / many) * nearest
