"""Curves of training: metrics over updates, smoothed, by run and over the seeds of a group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from trustclip.findings.groups import Group, names, pooled
from trustclip.findings.rows import PREFIX, over_tokens
from trustclip.logs.names import SAMPLING_ENTROPY
from trustclip.logs.reader import Run
from trustclip.report.draw.marks import (
    BANDS,
    NEUTRAL,
    Figure,
    Mark,
    Panel,
    Style,
    figure,
    in_percent,
    moving_mean,
    sample_indices,
    window_of,
)
from trustclip.report.results import tasks_of
from trustclip.support.text import title_of

#: Panels of Figure 2: metrics key, title, axis, factor.
TRAINING = (
    ("reward", "Reward", "mean per completion", 1.0),
    ("entropy", "Entropy", "nats per token", 1.0),
    ("completions/mean_length", "Completion length", "tokens", 1.0),
)

#: Quadrants of the gate: key, what closes there, number of the colour.
QUADRANTS = (
    ("positive_above", "A > 0, ratio > 1", 0),
    ("negative_below", "A < 0, ratio < 1", 1),
    ("positive_below", "A > 0, ratio < 1", 5),
    ("negative_above", "A < 0, ratio > 1", 4),
)

Points = Mapping[int, float]


def points_of(run: Run, key: str, factor: float = 1.0) -> dict[int, float]:
    """Values of a metric by update, as far as it was logged.

    The entropy is that over all completions, where it was logged.
    """
    rows = run.training
    if key == "entropy" and any(SAMPLING_ENTROPY in row for row in rows):
        key = SAMPLING_ENTROPY
    return {row["step"]: factor * row[key] for row in rows if isinstance(row.get(key), int | float)}


def lines_of(group: Group, key: str, factor: float = 1.0) -> list[Mark]:
    """Curves of a metric: raw and smoothed for one run; smoothed with their mean for several."""
    smooth, raw = _smoothed(group, key, factor)
    strong = mean_over_runs(smooth)
    if not strong:
        return []
    faint = smooth if len(smooth) > 1 else [points for points in raw if points != smooth[0]]
    marks = [_mark("faint", points, group) for points in faint]
    return [*marks, _mark("line", strong, group)]


def metric_panels(
    groups: Sequence[Group], metrics: Sequence[tuple[str, str, str, float]]
) -> list[Panel]:
    """A panel for each metric (key, title, axis, factor) that some group has logged twice."""
    return [
        Panel(title, "update", unit, marks)
        for key, title, unit, factor in metrics
        if (marks := [mark for group in groups for mark in lines_of(group, key, factor)])
        and any(len(mark.x) > 1 for mark in marks)
    ]


def mean_over_runs(runs: Sequence[Points]) -> dict[int, float]:
    """Mean over runs at the updates that all of them have logged."""
    shared = set.intersection(*(set(points) for points in runs)) if runs else ()
    return {s: sum(points[s] for points in runs) / len(runs) for s in sorted(shared)}


def _smoothed(group: Group, key: str, factor: float) -> tuple[Sequence[Points], Sequence[Points]]:
    """A metric of each run of a group that has logged it, smoothed and as it is."""
    raw = [points for run in group.runs if (points := points_of(run, key, factor))]
    window = window_of(max((max(points) for points in raw), default=1))
    return [_smooth(points, window) for points in raw], raw


def _smooth(points: Points, window: int) -> dict[int, float]:
    # A metric that is logged once per generation has fewer points than there are updates.
    gap = (max(points) - min(points)) / max(len(points) - 1, 1)
    near = max(1, round(window / max(gap, 1)))
    if near == 1:
        return dict(points)
    means = dict(zip(points, moving_mean([*points.values()], near), strict=True))
    # The first means are of few values, and noisier than the curve is meant to be.
    return {step: means[step] for step in list(means)[near // 2 :]}


def _mark(style: Style, points: Points, group: Group, name: str = "") -> Mark:
    """A curve in the colour of a group, at no more points than are seen."""
    kept = sample_indices(len(points))
    x, y = list(points), list(points.values())
    label = name or group.label
    return Mark(style, [x[i] for i in kept], [y[i] for i in kept], label, group.series)


def training_figure(groups: Sequence[Group]) -> Figure | None:
    """Figure 2: return, entropy, completion length and scores over updates."""
    panels = [*metric_panels(groups, TRAINING), *_score_panels(groups)]
    if not panels:
        return None
    several = any(len(group.runs) > 1 for group in groups)
    windows = {window_of(run.last_step) for group in groups for run in group.runs if run.last_step}
    window = max(windows, default=1)
    caption = f"Lines are moving averages over {window} updates" if window > 1 else "Values are raw"
    if several:
        caption += ", faint for each seed and strong for the mean"
    elif window > 1:
        caption += "; faint lines are raw values"
    caption += " (Figure 2 of the paper)."
    caption += of_bands(groups, [mark for panel in panels for mark in panel.marks])
    return Figure("figure2", "Training", caption, panels)


def of_bands(groups: Sequence[Group], marks: Sequence[Mark]) -> str:
    """What a caption says of the bands among some marks."""
    text = ""
    if any(mark.style == "band" for mark in marks):
        seeds = " and seed" * any(len(group.scored) > 1 for group in groups)
        text += (
            f" Bands are 95 % intervals, clustered by {groups[0].unit}{seeds}; they are drawn for "
            f"up to {BANDS} methods."
        )
    if any(group.unsteady for group in groups):
        text += " No band is drawn where some of only a few runs collapsed: it would be wrong."
    return text


def rewards_figure(groups: Sequence[Group]) -> Figure | None:
    """Each reward over updates, where a training had several."""
    keys = dict.fromkeys(
        key for group in groups for run in group.runs for row in run.training for key in row
        if key.startswith(_REWARD[0]) and key.endswith(_REWARD[1])
    )  # fmt: skip
    names = (key.removeprefix(_REWARD[0]).removesuffix(_REWARD[1]) for key in keys)
    metrics = [(key, name, "mean reward", 1.0) for key, name in zip(keys, names, strict=True)]
    panels = metric_panels(groups, metrics)
    caption = "Each reward is a mean over completions, before its weight. The total is the return."
    return Figure("rewards", "Rewards", caption, panels) if len(panels) > 1 else None


#: What TRL logs of each reward.
_REWARD = ("rewards/", "/mean")


def _score_panels(groups: Sequence[Group]) -> list[Panel]:
    metrics = dict.fromkeys(metric for group in groups for metric in group.metrics)
    several = len(tasks_of(groups)) > 1
    panels = []
    for metric in metrics:
        marks = [mark for group in groups for mark in _score_marks(group, metric)]
        if any(len(mark.x) > 1 for mark in marks):
            title = title_of(metric) + (", average" if several else "")
            panels.append(Panel(title, "update", groups[0].scale, marks))
    return panels


def _score_marks(group: Group, metric: str) -> list[Mark]:
    """A score over updates with its interval, where every run of the group was evaluated."""
    runs = [{e.step: e for e in run.evaluations if e.step is not None} for run in group.runs]
    runs = [evaluations for evaluations in runs if evaluations]
    if not runs:
        return []
    steps = sorted(set.intersection(*(set(evaluations) for evaluations in runs)))
    estimates = [(s, e) for s in steps if (e := pooled([r[s] for r in runs], None, metric))]
    x = [step for step, _ in estimates]
    y, low, high = in_percent([e for _, e in estimates])
    has_bounds = None not in low and not group.unsteady
    marks = [Mark("band", x, y, group.label, group.series, low, high)] if has_bounds else []
    for evaluations in runs if len(runs) > 1 else []:
        scores = {s: evaluations[s].score(None, metric) for s in steps}
        each = {s: 100 * score["value"] for s, score in scores.items() if score}
        marks.append(_mark("faint", each, group))
    return [*marks, Mark("line", x, y, group.label, group.series)]


def gate_figure(groups: Sequence[Group]) -> Figure | None:
    """Gated share and distance from the old policy over updates, for all groups."""
    metrics = (
        ("trustclip/gated", "Gated tokens", "percent of tokens", 100.0),
        ("trustclip/k3", "Mean k3 from the old policy", "nats per token", 1.0),
        ("trustclip/off_policy", "Tokens with a ratio other than 1", "percent of tokens", 100.0),
        ("trustclip/advantage_cut", "Absolute advantage on gated tokens", "percent of the total",
         100.0),
        ("trustclip/ess", "Effective sample size", "percent of tokens", 100.0),
        ("trustclip/agreement/precision", "Gated tokens that the exact KL would gate", "percent",
         100.0),
        ("trustclip/agreement/recall", "Tokens the exact KL would gate that are gated", "percent",
         100.0),
    )  # fmt: skip
    caption = (
        "The gate can only close where the ratio is not 1. In the first update of a generation "
        "every ratio is 1, and no constraint acts."
    )
    panels = metric_panels(groups, metrics)
    return figure("gate", "The gate over updates", caption, panels)


def quadrant_figure(groups: Sequence[Group]) -> Figure | None:
    """Gated tokens by the sign of the advantage and the side of the ratio, one panel per group."""
    panels = []
    for title, group in zip(names(groups), groups, strict=True):
        marks = []
        for quadrant, meaning, colour in QUADRANTS:
            points = over_seeds(group, f"trustclip/gated/{quadrant}", 100.0)
            if points and max(points.values()) > 0:
                area = _mark("area", points, group, meaning)
                marks.append(replace(area, series=colour, group=group.series))
        if marks:
            panels.append(Panel(title, "update", "percent of tokens", marks, group=group.series))
    caption = (
        "Cut tokens are stacked by the sign of the advantage A and by whether the ratio is above "
        "or below 1. An outward gate closes only for A > 0 above 1 and for A < 0 below 1."
    )
    return figure("quadrants", "Which tokens are gated", caption, alike(panels, 0))


def ratio_figure(groups: Sequence[Group]) -> Figure | None:
    """Quantiles of the ratio and the bounds of the method, one panel per group."""
    quantiles = (("99", "99 % quantile"), ("50", "median"), ("01", "1 % quantile"))
    panels = quantile_panels(groups, "ratio", quantiles, "ratio new / old", bounds=True)
    caption = (
        "The lines are quantiles of the ratio of new to old probability: 98 % of tokens lie "
        "between the outer two. Dashed lines are the method's bounds, if all tokens share them."
    )
    return figure("ratios", "Quantiles of the ratio", caption, alike(panels))


def quantile_panels(
    groups: Sequence[Group],
    metric: str,
    quantiles: Sequence[tuple[str, str]],
    axis: str,
    *,
    bounds: bool = False,
) -> list[Panel]:
    """Quantiles (key, name) of a metric, a panel for each group; perhaps its ratio's bounds."""
    panels = []
    for title, group in zip(names(groups), groups, strict=True):
        marks = [
            _mark("faint" if key == "50" else "line", points, group, name)
            for key, name in quantiles
            if (points := over_seeds(group, f"trustclip/{metric}_q{key}"))
        ]
        if marks and bounds:
            ends = [marks[0].x[0], marks[0].x[-1]]
            named = zip(("lowest ratio", "highest ratio"), group.interval() or (), strict=False)
            marks += [
                Mark("dashed", ends, [float(bound)] * 2, name, NEUTRAL, group=group.series)
                for name, bound in named
            ]
        if marks:
            panels.append(Panel(title, "update", axis, marks, group=group.series))
    return panels


def alike(panels: Sequence[Panel], low: float | None = None) -> list[Panel]:
    """The panels with a common y range."""
    lowest, highest = inf, -inf
    for panel in panels:
        lines = [[v for v in mark.y if v is not None] for mark in panel.marks]
        stacked = all(mark.style == "area" for mark in panel.marks)
        tops = [max(values) for values in lines if values]
        highest = max(highest, sum(tops) if stacked else max(tops))
        lowest = min(lowest, *(min(values) for values in lines if values))
    margin = 0.06 * (highest - lowest)
    bottom = lowest - margin if low is None else low
    return [replace(panel, y_range=(bottom, highest + margin)) for panel in panels]


#: Classifications of tokens in the metrics, and their axis titles.
_KINDS = (
    ("p_old", "old probability"),
    ("position", "quarter of the completion"),
    ("entropy", "entropy, nats"),
)


def bucket_figure(groups: Sequence[Group]) -> Figure | None:
    """Gated share by kind of token over the whole run, one panel per classification."""
    panels = []
    for kind, axis in _KINDS:
        marks = [
            mark for group in groups if (mark := means_of(group, f"gated/{kind}_", _bucket, 100.0))
        ]
        if marks:
            title = f"By {axis.partition(',')[0]}"
            panels.append(Panel(title, axis, "percent gated", marks))
    caption = (
        "Points are shares of cut tokens over a run, by the tokens' probability under the old "
        "policy, by quarter of the completion, and by the policy's entropy at their position."
    )
    return figure("kinds", "Which kinds of tokens are gated", caption, panels)


def means_of(
    group: Group, prefix: str, label: Callable[[str], str], factor: float = 1.0
) -> Mark | None:
    """Mean over a run of each metric of a prefix, by its bucket, in order."""
    rows = [row for run in group.runs for row in run.training]
    whole = PREFIX + prefix
    found = {key.removeprefix(whole) for row in rows for key in row if key.startswith(whole)}
    names = sorted(found, key=lambda name: float(name.partition("_")[0]))
    means = [factor * over_tokens(rows, prefix + name)[0] for name in names]
    return Mark("points", [*map(label, names)], means, group.label, group.series) if means else None


def _bucket(name: str) -> str:
    """Label of a bucket: ``"0.01_0.1"`` is ``"≤ 0.1"``."""
    low, between, high = name.partition("_")
    if not between:
        return name
    return f"> {low}" if high == "inf" else f"≤ {high}"


def over_seeds(group: Group, key: str, factor: float = 1.0) -> dict[int, float]:
    """A metric smoothed, then averaged over the runs of a group."""
    return mean_over_runs(_smoothed(group, key, factor)[0])
