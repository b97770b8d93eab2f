"""Scores against the number of samples."""

from collections.abc import Sequence
from math import isfinite

from trustclip import stats
from trustclip.findings.groups import Group, shared_answers
from trustclip.report.draw.curves import of_bands
from trustclip.report.draw.marks import Figure, Mark, Panel, in_percent
from trustclip.support.text import title_of


def budget_figure(groups: Sequence[Group], suffix: str = "") -> Figure | None:
    """Figure 4: Mean@K and Pass@K of the final evaluation against K."""
    panels = []
    for kind in ("mean", "pass"):
        lines = [line for group in groups if (line := _curve(group, kind))]
        longest = max((int(line.x[-1]) for line in lines), default=1)
        if longest < 2:
            continue
        bands = [band for group in groups if (band := _band(group, kind, longest))]
        marks = [*bands, *lines]
        ticks = [2.0**i for i in range(longest.bit_length())]
        label = f"{title_of(kind)}@K"
        panels.append(Panel(label, "K, samples per problem", "percent", marks, True, ticks=ticks))
    if not panels:
        return None
    marks = [mark for panel in panels for mark in panel.marks]
    caption = (
        "Mean@K is the mean over the first K samples: only its noise depends on K. Pass@K is the "
        "unbiased estimate from all samples (Figure 4 of the paper)."
    ) + of_bands(groups, marks)
    return Figure(f"figure4{suffix}", "Scores against the number of samples", caption, panels)


def _curve(group: Group, kind: str) -> Mark | None:
    """Mean over runs at every K; None where their numbers of samples differ, or are not known."""
    curves = [e.scores["average"].get("curve") for e in group.evaluations("final")]
    if not curves or None in curves or len({tuple(c["k"]) for c in curves}) > 1:
        return None
    each = [c[kind] for c in curves]
    y = [100 * sum(values) / len(each) for values in zip(*each, strict=True)]
    return Mark("line", curves[0]["k"], y, group.label, group.series)


def _band(group: Group, kind: str, longest: int) -> Mark | None:
    """95 % intervals at powers of 2 and at the end; None where none is known, or none covers."""
    curve = _curve(group, kind)
    answers, strata = shared_answers(group.evaluations("final"))
    if curve is None or not answers or group.unsteady:
        return None
    last = int(curve.x[-1])
    ks = sorted({last, *(2**i for i in range(longest.bit_length()) if 2**i <= last)})
    intervals = [_interval(answers, strata, kind, k) for k in ks]
    if not all(isfinite(one.low + one.high) for one in intervals):
        return None
    y, low, high = in_percent(intervals)
    return Mark("band", ks, y, group.label, group.series, low, high)


def _interval(
    answers: Sequence[Sequence[Sequence[int]]], strata: Sequence[str], kind: str, k: int
) -> stats.Interval:
    if kind == "pass":
        return stats.pass_interval(answers, k, strata)
    return stats.mean_interval([[samples[:k] for samples in run] for run in answers], strata)
