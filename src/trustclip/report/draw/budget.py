"""Scores against the number of samples, and the paper's printed numbers beside ours."""

from collections.abc import Sequence
from math import isfinite

from trustclip import stats
from trustclip.findings.groups import Group, shared_answers
from trustclip.report.draw.curves import of_bands
from trustclip.report.draw.marks import NEUTRAL, Figure, Mark, Panel, in_percent
from trustclip.report.reference import published
from trustclip.report.results import tasks_of
from trustclip.support.text import title_of

#: Name of the paper's numbers in a legend, and their distance from ours, as a factor of K.
PAPER, ASIDE = "the paper", 1.06


def budget_figure(groups: Sequence[Group], suffix: str = "") -> Figure | None:
    """Figure 4: Mean@K and Pass@K of the final evaluation against K."""
    panels = []
    for kind in ("mean", "pass"):
        lines = [line for group in groups if (line := _curve(group, kind))]
        longest = max((int(line.x[-1]) for line in lines), default=1)
        if longest < 2:
            continue
        bands = [band for group in groups if (band := _band(group, kind, longest))]
        at = published().samples  # the paper's K, beside curves that go as far
        among = groups if longest >= at else ()
        theirs = [m for group in among if (m := beside(group, f"{kind}@{at}", at * ASIDE))]
        marks = [*bands, *lines, *theirs, *_figure4(groups, kind, longest)]
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
    if any(mark.style == "dashed" for mark in marks):
        caption += ' Dashed: Mean@K of ATR-GRPO, of which the paper says "around 0.23".'
    caption += paper_note(marks)
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


def _figure4(groups: Sequence[Group], kind: str, longest: int) -> list[Mark]:
    """What the paper prints of its own Figure 4, beside runs of its model and benchmarks."""
    printed = published().over_samples(kind, groups[0].model, tasks_of(groups))
    if printed is None:
        return []
    if isinstance(printed, float | int):
        return [Mark("dashed", [1, longest], [printed] * 2, f"{PAPER}, about", NEUTRAL)]
    points = {k: y for k, y in printed.items() if k <= longest}
    return [Mark("printed", [*points], [*points.values()], f"{PAPER}: Figure 4", NEUTRAL)]


def beside(group: Group, metric: str, place: float, series: int | None = None) -> Mark | None:
    """The paper's number for the same model, method and benchmarks; None where it prints none."""
    score = published().score(group.model, group.method, tasks_of([group]), metric)
    if score is None:
        return None
    colour = group.series if series is None else series
    low, high = ([score.low], [score.high]) if isfinite(score.low) else ([], [])
    return Mark("printed", [place], [score.value], PAPER, colour, low, high)


def paper_note(marks: Sequence[Mark]) -> str:
    """The sentence of a caption about the paper's numbers among some marks; empty without any."""
    if not any(mark.style == "printed" for mark in marks):
        return ""
    return (
        " Open diamonds are the paper's printed numbers, as they stand: where it has three runs, "
        "their mean with Student's 95 % interval over them; others are single runs."
    )
