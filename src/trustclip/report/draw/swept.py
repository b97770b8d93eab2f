"""Figures of methods over what varies: a hyper-parameter, or a setting that their suite sweeps."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import Any

from trustclip.findings import rows
from trustclip.findings.comparison import Compared
from trustclip.findings.groups import Group
from trustclip.report.draw.marks import Figure, Mark, Panel, in_percent
from trustclip.support.text import title_of

#: Distance of two methods at one value, and most of all of them together, as shares of the distance
#: to the next value: whiskers that lie on one another cannot be read.
APART, TOGETHER = 0.06, 0.5


@dataclass(frozen=True)
class _Line:
    """The groups of one method in the order of what varies, and their places on its axis."""

    name: str
    groups: Sequence[Group]
    x: Sequence[float]

    def through(self, shares: Sequence[float | None]) -> list[Mark]:
        """A line through shares; a group without one is left out."""
        points = [(x, share) for x, share in zip(self.x, shares, strict=True) if share is not None]
        if not points:
            return []
        x, y = [x for x, _ in points], [100 * share for _, share in points]
        return [Mark("line", x, y, self.name, self.groups[0].series)]

    def with_intervals(self, estimates: Sequence[Any]) -> list[Mark]:
        """A line through estimates or differences, and their intervals."""
        line = self.through([None if one is None else one.value for one in estimates])
        _, low, high = in_percent([one for one in estimates if one is not None])
        return [*line, *(replace(mark, style="points", low=low, high=high) for mark in line)]


def sweep_figures(groups: Sequence[Group]) -> list[Figure]:
    """Figure 3: scores and gated share against a threshold, wherever groups differ in one."""
    figures = []
    for (setting, name, parameter), members in sweeps(groups).items():
        panels = _threshold_panels(members, name, parameter)
        if not panels:
            continue
        key = "-".join(["figure3", name, parameter, *([setting] if figures else [])])
        caption = f"All settings but the {len(members)} values are equal (Figure 3 of the paper)."
        if len(members) < 4:
            caption += " So few values say little about where the optimum is."
        figures.append(Figure(_slug(key), f"{name} against {parameter}", caption, panels))
    return figures


def _threshold_panels(members: Sequence[Group], name: str, parameter: str) -> list[Panel]:
    """A panel for each number that all groups have."""
    x = [float(getattr(group.method, parameter)) for group in members]
    line = _Line(name, members, x)
    panels = []
    for metric in members[0].metrics:
        estimates = [group.estimate(None, metric) for group in members]
        if None not in estimates:
            marks = line.with_intervals(estimates)
            panels.append(Panel(title_of(metric), parameter, "percent", marks, ticks=x))
    shares = [_mean_gated(group) for group in members]
    if None not in shares:
        marks = line.through(shares)
        panels.append(Panel("Gated tokens", parameter, "percent of tokens", marks, ticks=x))
    return panels


def sweeps(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[Group]]:
    """Groups of one setting and method that differ in one numeric hyper-parameter, by its value.

    Returns:
      By (setting, method, hyper-parameter), two groups or more each.
    """
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if group.method is not None:
            families[group.setting, group.method.name].append(group)
    sweeps = {}
    for (setting, name), members in families.items():
        values = {
            f.name: [getattr(group.method, f.name) for group in members]
            for f in fields(members[0].method)  # type: ignore[arg-type]
        }
        varying = [key for key, column in values.items() if any(v != column[0] for v in column)]
        if len(varying) != 1:
            continue
        key, column = varying[0], values[varying[0]]
        if all(map(_is_number, column)) and len(set(column)) == len(members):
            sweeps[setting, name, key] = sorted(members, key=lambda g: getattr(g.method, key))
    return sweeps


def swept_figures(groups: Sequence[Group], compared: Sequence[Compared]) -> list[Figure]:
    """Final scores, differences to the reference and gated shares over each swept number."""
    figures = []
    for (path, _), members in _families(groups).items():
        values = sorted({_value(group, path) for group in members})
        if len(values) < 2:
            continue
        name, labels = path.rpartition(".")[2], list(dict.fromkeys(g.label for g in members))
        nearest = min(after - before for before, after in pairwise(values))
        lines = []
        for i, label in enumerate(labels):
            own = sorted((g for g in members if g.label == label), key=lambda g: _value(g, path))
            shift = (i - (len(labels) - 1) / 2) * min(APART, TOGETHER / len(labels)) * nearest
            lines.append(_Line(label, own, [_value(group, path) + shift for group in own]))
        panels = [
            Panel(title, name, unit, marks, ticks=values)
            for title, unit, marks in _panels(lines, compared)
            if marks
        ]
        key = "-".join(["sweep", path, *([str(len(figures) + 1)] if figures else [])])
        caption = (
            f"Points are final evaluations at each value of {path}, with 95 % intervals clustered "
            "by problem and seed; they are shifted slightly so that they do not overlap. "
            "Differences are to the reference at the same value, paired, and not corrected for "
            "multiple comparisons."
        )
        figures.append(Figure(_slug(key), f"Methods against {name}", caption, panels))
    return figures


def _panels(
    lines: Sequence[_Line], compared: Sequence[Compared]
) -> Iterator[tuple[str, str, list[Mark]]]:
    metric = next((g.metrics[0] for line in lines for g in line.groups if g.metrics), "")
    scores = [[group.estimate(None, metric) for group in line.groups] for line in lines]
    marks = [line.with_intervals(estimates) for line, estimates in zip(lines, scores, strict=True)]
    yield title_of(metric), "percent", [*chain.from_iterable(marks)]
    measured = [c for c in compared if c.difference is not None]
    if measured:
        by_group = {(c.group.setting, c.group.label): c.difference for c in measured}
        marks = [_differences(line, by_group) for line in lines]
        title = f"Difference to {measured[0].reference.label}"
        yield title, "points", [*chain.from_iterable(marks)]
    marks = [line.through([_mean_gated(group) for group in line.groups]) for line in lines]
    yield "Gated tokens", "percent of tokens", [*chain.from_iterable(marks)]


def _differences(line: _Line, by_group: Mapping[tuple[str, str], Any]) -> list[Mark]:
    if all(group.is_reference for group in line.groups):
        return line.through([0.0] * len(line.groups))
    return line.with_intervals([by_group.get((g.setting, g.label)) for g in line.groups])


def _families(groups: Sequence[Group]) -> dict[tuple[str, str], list[Group]]:
    """Groups by swept path and the rest of their setting."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        swept = group.runs[0].swept
        for path, value in swept.items():
            if _is_number(value):
                others = {key: other for key, other in swept.items() if key != path}
                families.setdefault((path, f"{group.model} {others}"), []).append(group)
    return families


def _value(group: Group, path: str) -> float:
    return float(group.runs[0].swept[path])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean_gated(group: Group) -> float | None:
    """Mean share of gated tokens over the updates of all runs."""
    values = rows.values([row for run in group.runs for row in run.training], "gated")
    return sum(values) / len(values) if values else None


def _slug(text: str) -> str:
    """Text as part of a file name."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in text)
