"""Figures of methods and of final scores: constraint, differences, numbers of samples."""

import math
from collections.abc import Sequence

import torch

from trustclip import stats
from trustclip.findings.comparison import Compared
from trustclip.findings.groups import Estimate, Group, by_setting, names, shared_answers, units
from trustclip.report.draw.curves import of_bands
from trustclip.report.draw.marks import NEUTRAL, Figure, Mark, Panel, figure, in_percent
from trustclip.report.results import tasks_of
from trustclip.report.weights import P_OLD, curve
from trustclip.support.text import title_of

#: Ratios up to which a gate is drawn: the first, if nothing happens between the two.
_NEAR, _FAR = 2.0, 3.4


def constraint_figure(groups: Sequence[Group]) -> Figure | None:
    """Figure 1: weight of a token's gradient over the ratio, and the interval it follows from."""
    distinct = {g.label: g for g in groups if g.method is not None or g.unreadable}
    rising, falling, bounds, missing = [], [], [], ""
    for group in distinct.values():
        try:
            if group.method is None:
                raise ValueError(group.unreadable)
            ratios, positive, negative = curve(group.method, 121)
        except ValueError as error:  # its file may not be run, or no single token has what it needs
            missing += f" {group.label} is not drawn: {error}"
            continue
        for marks, y in ((rising, positive), (falling, negative)):
            marks.append(Mark("line", ratios, y, group.label, group.series))
        bounds += _bounds(group)
    if not distinct:
        return None
    weights = [w for mark in (*rising, *falling) for w in mark.y if w is not None]
    lowest = min(filter(math.isfinite, weights), default=0.0)
    reach = _NEAR if all(map(_is_settled, [*rising, *falling])) else _FAR
    panels = [
        Panel(f"Weight where A {sign} 0", "ratio new / old", "weight c", marks,
              x_range=(0, reach), y_range=(max(lowest, -reach) - 0.1, reach), rule=1)
        for sign, marks in ((">", rising), ("<", falling))
    ]  # fmt: skip
    if bounds:
        panels.append(
            Panel("Ratio interval", "old probability of the token", "ratio new / old", bounds,
                  log_x=True, y_range=(0, reach))
        )  # fmt: skip
    caption = (
        "The curve shows how strongly a token is trained (weight c) if its probability has changed "
        "by this ratio. At 0 the method cuts the token. Left: tokens of positive advantage A; "
        f"right: negative. (The old probability is {P_OLD:g}, and the exact KL is k3 of the token.)"
    )
    if bounds:
        caption += " The gate never closes for a ratio inside the interval."
    caption += " This is Figure 1 of the paper, for any method." + missing
    return Figure("figure1", "Gradient weight and ratio interval", caption, panels)


def _is_settled(mark: Mark) -> bool:
    """Whether nothing happens beyond the nearer end: the weight is 0, or the ratio itself."""
    far = [(x, y) for x, y in zip(mark.x, mark.y, strict=True) if float(x) > 0.9 * _NEAR]
    return all(y == 0 for _, y in far) or all(abs((y or 0) - float(x)) < 1e-6 for x, y in far)


def _bounds(group: Group) -> list[Mark]:
    p = torch.logspace(-3, 0, 61, dtype=torch.float64).clamp(max=1 - 1e-9)
    bounds = (torch.as_tensor(b, dtype=p.dtype).expand(len(p)) for b in group.interval(p) or ())
    return [
        Mark("line", p.tolist(), bound.tolist(), group.label, group.series)
        for bound in bounds
        if bound.isfinite().all()
    ]


def forest_figure(groups: Sequence[Group], compared: Sequence[Compared]) -> Figure | None:
    """Final scores and differences to the reference, each with its interval."""
    scored = [group for group in groups if group.scored and group.metrics]
    if not scored:
        return None
    measured = [c for c in compared if c.difference is not None]
    panels = [_final_panel(scored), *([_difference_panel(scored, measured)] if measured else [])]
    seeds = any(len(group.scored) > 1 for group in scored)
    caption = f"Bars are 95 % intervals, clustered by {units(scored, seeds=seeds)}"
    if measured:
        caption += ". The differences are not corrected for multiple comparisons"
    return Figure("scores", "At the end of training", caption + ".", panels)


def _final_panel(scored: Sequence[Group]) -> Panel:
    metric, several = scored[0].metrics[0], len(by_setting(scored)) > 1
    marks = [] if several else [_whisker("before training", scored[0], metric, "initial")]
    pairs = [*zip(names(scored), scored, strict=True)]
    marks += [_whisker(name, group, metric) for name, group in reversed(pairs)]
    average = ", average of the tasks" if len(tasks_of(scored)) > 1 else ""
    present = [mark for mark in marks if mark is not None]
    return Panel(f"{title_of(metric)}{average}", scored[0].scale, "", present, across=True)


def _difference_panel(scored: Sequence[Group], compared: Sequence[Compared]) -> Panel:
    """Differences in the order of the scores, the reference itself at 0."""
    by_group = {(c.group.setting, c.group.label): c.difference for c in compared}
    marks = []
    for name, group in reversed([*zip(names(scored), scored, strict=True)]):
        d = by_group.get((group.setting, group.label))
        if d is not None:
            marks.append(_across(name, d, group.series))
        elif group.is_reference:
            marks.append(Mark("points", [0.0], [], name, group.series))
    title = f"Difference to {compared[0].reference.label}"
    return Panel(title, "points", "", marks, across=True, rule=0)


def _whisker(name: str, group: Group, metric: str, moment: str = "final") -> Mark | None:
    e = group.estimate(None, metric, moment)
    series = group.series if moment == "final" else NEUTRAL
    return None if e is None else _across(name, e, series)


def _across(name: str, estimate: Estimate | stats.Difference, series: int) -> Mark:
    value, low, high = in_percent([estimate])
    return Mark("points", value, [], name, series, low, high)


def budget_figure(groups: Sequence[Group]) -> Figure | None:
    """Figure 4: Mean@K and Pass@K of the final evaluation against K."""
    panels = []
    for kind in ("mean", "pass"):
        lines = [(group, line) for group in groups if (line := _over_k(group, kind))]
        longest = max((int(line.x[-1]) for _, line in lines), default=1)
        if longest < 2:
            continue
        bands = [band for group, line in lines if (band := _band(group, kind, line, longest))]
        marks = [*bands, *(line for _, line in lines)]
        ticks = [2.0**i for i in range(longest.bit_length())]
        label = f"{title_of(kind)}@K"
        panels.append(Panel(label, "K, samples per problem", "percent", marks, True, ticks=ticks))
    marks = [mark for panel in panels for mark in panel.marks]
    caption = (
        "Mean@K is the mean over the first K samples: only its noise depends on K. Pass@K is the "
        "unbiased estimate from all samples (Figure 4 of the paper)."
    ) + of_bands(groups, marks)
    return figure("figure4", "Scores against the number of samples", caption, panels)


def _over_k(group: Group, kind: str) -> Mark | None:
    """Mean over runs at every K; None where their numbers of samples differ, or are not known."""
    curves = [e.scores["average"].get("curve") for e in group.evaluations("final")]
    if not curves or None in curves or len({tuple(c["k"]) for c in curves}) > 1:
        return None
    each = [c[kind] for c in curves]
    y = [100 * sum(values) / len(each) for values in zip(*each, strict=True)]
    return Mark("line", curves[0]["k"], y, group.label, group.series)


def _band(group: Group, kind: str, line: Mark, longest: int) -> Mark | None:
    """95 % intervals at powers of 2 and at the end; None where none is known, or none covers."""
    answers, strata = shared_answers(group.evaluations("final"))
    if not answers or group.unsteady:
        return None
    last = int(line.x[-1])
    ks = sorted({last, *(2**i for i in range(longest.bit_length()) if 2**i <= last)})
    intervals = [
        stats.pass_interval(answers, k, strata)
        if kind == "pass"
        else stats.mean_interval([[samples[:k] for samples in run] for run in answers], strata)
        for k in ks
    ]
    if not all(math.isfinite(one.low + one.high) for one in intervals):
        return None
    y, low, high = in_percent(intervals)
    return Mark("band", ks, y, group.label, group.series, low, high)
