"""Figures of methods and of final scores: constraint, differences, sweep."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

import torch

from trustclip.findings import rows
from trustclip.findings.comparison import Compared
from trustclip.findings.groups import Group, by_setting, names
from trustclip.report.draw.budget import beside, told
from trustclip.report.draw.marks import NEUTRAL, Figure, Mark, Panel
from trustclip.report.results import tasks_of
from trustclip.report.weights import P_OLD, curve
from trustclip.support.text import title_of

#: Distance of the paper's numbers from ours, as a share of that to the next value.
ASIDE = 0.1
#: Ratios up to which a gate is drawn: the first, if nothing happens between the two.
_NEAR, _FAR = 2.0, 3.4


def constraint_figure(groups: Sequence[Group]) -> Figure | None:
    """Figure 1: weight of a token's gradient over the ratio, and the interval it follows from."""
    distinct = {g.label: g for g in groups if g.method is not None}
    rising, falling, bounds = [], [], []
    for group in distinct.values():
        assert group.method is not None
        try:
            ratios, positive, negative = curve(group.method, 121)
        except ValueError:
            continue  # it needs what no single token can have
        for marks, weights in ((rising, positive), (falling, negative)):
            marks.append(Mark("line", ratios, weights, group.label, group.series))
        bounds += _bounds(group)
    if not rising:
        return None
    reach = _NEAR if all(map(_settled, [*rising, *falling])) else _FAR
    panels = [
        Panel(f"Weight where A {sign} 0", "ratio new / old", "weight c", marks,
              x_range=(0, reach), y_range=(-0.1, reach), rule=1)
        for sign, marks in ((">", rising), ("<", falling))
    ]  # fmt: skip
    if bounds:
        panels.append(
            Panel("Ratio interval", "old probability of the token", "ratio new / old", bounds,
                  log_x=True, y_range=(0, reach))
        )  # fmt: skip
    caption = (
        "The gradient of a token is c · A · ∇log π; the method determines the weight c, shown for "
        f"positive and negative advantage A (at an old probability of {P_OLD:g}, with the exact KL "
        "set to k3 of the token)."
    )
    if bounds:
        caption += " The gate never closes for a ratio inside the interval."
    caption += " (Figure 1 of the paper, for any method.)"
    return Figure("figure1", "Gradient weight and ratio interval", caption, panels)


def _settled(mark: Mark) -> bool:
    """Whether nothing happens beyond the nearer end: the weight is 0, or the ratio itself."""
    far = [(x, y) for x, y in zip(mark.x, mark.y, strict=True) if float(x) > 0.9 * _NEAR]
    return all(y == 0 for _, y in far) or all(abs((y or 0) - float(x)) < 1e-6 for x, y in far)


def _bounds(group: Group) -> list[Mark]:
    p = torch.logspace(-3, 0, 61, dtype=torch.float64).clamp(max=1 - 1e-9)
    found = (torch.as_tensor(b, dtype=p.dtype).expand(len(p)) for b in group.interval(p) or ())
    return [
        Mark("line", p.tolist(), bound.tolist(), group.label, group.series)
        for bound in found
        if bound.isfinite().all()
    ]


def forest_figure(groups: Sequence[Group], compared: Sequence[Compared]) -> Figure | None:
    """Final scores and differences to the reference, each with its interval."""
    scored = [group for group in groups if group.scored and group.metrics]
    if not scored:
        return None
    found = [c for c in compared if c.difference is not None]
    panels = [_final_panel(scored), *([_difference_panel(scored, found)] if found else [])]
    caption = "95 % intervals, clustered by problem"
    if any(len(group.scored) > 1 for group in scored):
        caption += " and seed"
    if found:
        caption += "; the differences are paired, and not corrected for multiple comparisons"
    return Figure("scores", "At the end of training", caption + ".", panels)


def _final_panel(scored: Sequence[Group]) -> Panel:
    metric, several = scored[0].metrics[0], len(by_setting(scored)) > 1
    marks = [] if several else [_whisker("before training", scored[0], metric, "initial")]
    named = [*zip(names(scored), scored, strict=True)]
    marks += [_whisker(name, group, metric) for name, group in reversed(named)]
    average = ", average of the tasks" if len(tasks_of(scored)) > 1 else ""
    drawn = [mark for mark in marks if mark is not None]
    return Panel(f"{title_of(metric)}{average}", "percent", "", drawn, across=True)


def _difference_panel(scored: Sequence[Group], found: Sequence[Compared]) -> Panel:
    """Differences in the order of the scores, the reference itself at 0."""
    by_group = {(c.group.setting, c.group.label): c.difference for c in found}
    marks = []
    for name, group in reversed([*zip(names(scored), scored, strict=True)]):
        d = by_group.get((group.setting, group.label))
        if d is not None:
            whisker = [100 * d.low], [100 * d.high]
            marks.append(Mark("points", [100 * d.value], [], name, group.series, *whisker))
        elif group.is_reference:
            marks.append(Mark("points", [0.0], [], name, group.series))
    title = f"Difference to {found[0].reference.label}"
    return Panel(title, "points", "", marks, across=True, rule=0)


def _whisker(name: str, group: Group, metric: str, moment: str = "final") -> Mark | None:
    e = group.estimate(None, metric, moment)
    if e is None:
        return None
    known = e.low is not None and e.high is not None
    low, high = ([100 * e.low], [100 * e.high]) if known else ([], [])  # type: ignore[operator]
    series = group.series if moment == "final" else NEUTRAL
    return Mark("points", [100 * e.value], [], name, series, low, high)


def sweep_figures(groups: Sequence[Group]) -> list[Figure]:
    """Figure 3: scores and gated share against a threshold, wherever groups differ in one."""
    figures = []
    for (setting, name, parameter), members in sweeps(groups).items():
        panels = _sweep_panels(members, name, parameter)
        if not panels:
            continue
        key = "-".join(["figure3", name, parameter, *([setting] if figures else [])])
        caption = f"{len(members)} values, all other settings equal (Figure 3 of the paper)."
        if len(members) < 4:
            caption += " So few values say little about where the optimum is."
        caption += told([mark for panel in panels for mark in panel.marks])
        figures.append(Figure(slug(key), f"{name} against {parameter}", caption, panels))
    return figures


def _sweep_panels(members: Sequence[Group], name: str, parameter: str) -> list[Panel]:
    x = [float(getattr(group.method, parameter)) for group in members]
    series = members[0].series
    panels = []
    for metric in members[0].metrics:
        found = [e for group in members if (e := group.estimate(None, metric))]
        if len(found) == len(members):
            y = [100 * e.value for e in found]
            low = [None if e.low is None else 100 * e.low for e in found]
            high = [None if e.high is None else 100 * e.high for e in found]
            marks = [
                Mark("line", x, y, name, series),
                Mark("points", x, y, name, series, low, high),
                *_printed(members, metric, x),
            ]
            panels.append(Panel(title_of(metric), parameter, "percent", marks, ticks=x))
    gated = [share for group in members if (share := mean_gated(group)) is not None]
    if len(gated) == len(members):
        marks = [Mark("line", x, [100 * share for share in gated], name, series)]
        panels.append(Panel("Gated tokens", parameter, "percent of tokens", marks, ticks=x))
    return panels


def _printed(members: Sequence[Group], metric: str, x: Sequence[float]) -> list[Mark]:
    """The paper's numbers, beside the places of ours so that the whiskers can be told apart."""
    aside = ASIDE * min(after - before for before, after in pairwise(x))
    return [
        mark
        for group, place in zip(members, x, strict=True)
        if (mark := beside(group, metric, place + aside, members[0].series))
    ]


def sweeps(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[Group]]:
    """Groups of one setting and method that differ in one numeric hyper-parameter, by its value.

    Returns:
      By (setting, method, hyper-parameter), two groups or more each.
    """
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if group.method is not None:
            families[group.setting, group.method.name].append(group)
    found = {}
    for (setting, name), members in families.items():
        values = {
            f.name: [getattr(group.method, f.name) for group in members]
            for f in fields(members[0].method)  # type: ignore[arg-type]
        }
        varying = [key for key, given in values.items() if any(v != given[0] for v in given)]
        if len(varying) != 1:
            continue
        key, given = varying[0], values[varying[0]]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
        if numbers and len(set(given)) == len(members):
            found[setting, name, key] = sorted(members, key=lambda g: getattr(g.method, key))
    return found


def mean_gated(group: Group) -> float | None:
    """Mean share of gated tokens over the updates of all runs."""
    values = rows.values([row for run in group.runs for row in run.training], "gated")
    return sum(values) / len(values) if values else None


def slug(text: str) -> str:
    """Text as part of a file name."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in text)
