"""The arena's figures: scores, contrasts, performance profiles, tuning curves, collapses."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, isfinite, log10, nan

from arena_analysis import MARGIN, THRESHOLDS, Answer, Runs, Standing, profiles, rate
from arena_tuning import Point, Sensitivity, curve

from trustclip import stats
from trustclip.report.draw.marks import NEUTRAL, Figure, Mark, Panel

Series = Mapping[str, int]


def scores_figure(board: Sequence[Standing], series: Series, title: str, key: str) -> Figure:
    """Scores at the end with their intervals, and what collapsed."""
    ends = [_whisker(one.constraint, one.end, series) for one in reversed(board)]
    fallen = [_whisker(one.constraint, one.collapsed, series) for one in reversed(board)]
    panels = [
        Panel("Score at the end", "percent right", "", ends, across=True),
        Panel("Runs that collapsed", "percent", "", fallen, across=True),
    ]
    caption = (
        "Mean over tasks and depths, 95 % intervals over seeds; not paired: see the contrasts."
    )
    return Figure(f"scores{key}", f"Scores{title}", caption, panels)


def contrasts_figure(by_scope: Mapping[str, Sequence[Answer]]) -> Figure:
    """Every contrast over all depths and at each, with the margin."""
    panels = []
    for scope, answers in by_scope.items():
        marks = [
            _points(f"{a.question.ours} − {a.question.theirs}", a.contrast.difference, NEUTRAL)
            for a in reversed(answers)
        ]
        panels.append(Panel(scope, "points", "", marks, across=True, rule=0.0))
    caption = (
        "Difference of the scores at the end, paired by seed, each with its own 95 % interval. "
        f"A difference of {100 * MARGIN:g} point would matter."
    )
    return Figure("contrasts", "Contrasts", caption, panels)


def profiles_figure(runs: Runs, series: Series) -> Figure:
    """Performance profile: share of runs that end above a score, over all settings and by depth."""
    panels = [_profile("all settings", runs, series)]
    depths = sorted(runs.by("depth").items())
    if len(depths) > 1:
        panels += [_profile(f"depth {depth}", own, series) for (depth,), own in depths]
    caption = (
        "Share of all runs that end above a score, mean over tasks: the higher, the better. "
        "Bands, where few constraints are shown: 95 % by resampling seeds within tasks."
    )
    return Figure("profiles", "Performance profiles", caption, panels)


def _profile(title: str, runs: Runs, series: Series) -> Panel:
    intervals = profiles(runs)
    ends = [
        i for i in range(len(THRESHOLDS)) if any(0 < one[i].value < 1 for one in intervals.values())
    ] or [0, len(THRESHOLDS) - 1]
    visible = range(max(min(ends) - 1, 0), min(max(ends) + 2, len(THRESHOLDS)))
    x = [100 * float(THRESHOLDS[i]) for i in visible]
    marks = []
    for name, one in intervals.items():
        low, high = ([100 * getattr(one[i], end) for i in visible] for end in ("low", "high"))
        marks.append(Mark("band", x, [], name, series[name], low, high))
    marks += [
        Mark("line", x, [100 * one[i].value for i in visible], name, series[name])
        for name, one in intervals.items()
    ]
    return Panel(title, "score, percent right", "percent of runs above it", marks,
                 x_range=(x[0], x[-1]), y_range=(0, 101))  # fmt: skip


def tuning_figures(trials: Runs, series: Series) -> list[Figure]:
    """Score over the threshold, over the measured gate share and over the measured distance."""
    depths = sorted(trials.values("depth"))
    by = trials.by("constraint", "depth")
    curves = {key: curve(own) for key, own in by.items()}
    axes: list[tuple[str, str, Callable[[Point], float]]] = [
        ("gated", "percent of tokens cut", lambda p: 100 * p.gated if p.gated > 0 else nan),
        ("k3", "k3 per token, nats", lambda p: p.k3 if p.k3 > 0 else nan),
        ("width", "threshold, in each constraint's own unit", lambda p: p.width),
    ]
    titles = {
        "gated": "Score over the share of tokens cut",
        "k3": "Score over the distance moved",
        "width": "Score over the threshold",
    }
    notes = {
        "gated": "What never cuts a token is left out.",
        "k3": "The mean distance from the policy that a generation started from.",
        "width": "Thresholds of different constraints mean different things.",
    }
    figures, reach = [], _range(curves)
    for key, x_title, place in axes:
        panels = [
            _over(f"depth {depth}", x_title, _curves(curves, depth, series, place), reach)
            for depth in depths
        ]
        caption = (
            "Each point is a threshold at its best rate, mean over tasks, on the tuning seeds: "
            "chosen as the best of several, so a little too high, alike for all. " + notes[key]
        )
        figures.append(Figure(f"tuning-{key}", titles[key], caption, panels))
    return figures


def _over(title: str, x_title: str, marks: list[Mark], reach: tuple[float, float]) -> Panel:
    """Scores over a threshold or distance, on a logarithmic axis, or over a percentage."""
    places = [float(x) for mark in marks for x in mark.x]
    log = "percent" not in x_title
    ticks = _ticks(min(places), max(places)) if log and places else ()
    return Panel(title, x_title, "percent right", marks, log_x=log, y_range=reach, ticks=ticks)


def _ticks(low: float, high: float) -> list[float]:
    """Places of 1, 2 and 5 times a power of ten; of powers alone over more than two decades.

    Example:
      >>> _ticks(0.04, 0.3), _ticks(0.001, 10)
      ([0.05, 0.1, 0.2], [0.001, 0.01, 0.1, 1.0, 10.0])
    """
    steps = (1, 2, 5) if high < 100 * low else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    every = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in every if low <= tick <= high]


def _range(curves: Mapping[tuple[object, ...], Sequence[Point]]) -> tuple[float, float]:
    scores = [100 * point.score.value for points in curves.values() for point in points]
    room = 0.05 * (max(scores) - min(scores)) + 0.5
    return min(scores) - room, max(scores) + room


def _curves(
    curves: Mapping[tuple[object, ...], Sequence[Point]],
    depth: int,
    series: Series,
    place: Callable[[Point], float],
) -> list[Mark]:
    marks = []
    for name, number in series.items():
        points = [one for one in curves.get((name, depth), ()) if isfinite(place(one))]
        points = sorted(points, key=place)
        if points:
            x = [place(point) for point in points]
            y = [100 * point.score.value for point in points]
            marks.append(Mark("line", x, y, name, number))
    return marks


def sensitivity_figure(ranking: Sequence[Sensitivity], reference: str, series: Series) -> Figure:
    """Mean of all trials minus the reference's, and the best of them."""
    gaps = [
        _points(one.constraint, one.minus, series.get(one.constraint, NEUTRAL))
        for one in reversed(ranking)
        if one.minus is not None
    ]
    best = [
        Mark("points", [100 * one.best], [], one.constraint, series.get(one.constraint, NEUTRAL))
        for one in reversed(ranking)
    ]
    panels = [
        Panel(f"Mean of all trials, minus {reference}", "points", "", gaps, across=True, rule=0.0),
        Panel("Best trial of each cell", "percent right", "", best, across=True),
    ]
    caption = (
        "Tuning seeds: what a constraint gives on average over thresholds and rates (paired by "
        "seed, 95 % intervals), and at best."
    )
    return Figure("sensitivity", "Sensitivity to tuning", caption, panels)


def collapse_figure(runs: Runs, series: Series) -> Figure:
    """Share of collapsed runs at each depth."""
    by = runs.by("constraint", "depth")
    panels = [
        Panel(f"depth {depth}", "percent of runs", "", [
            _whisker(name, rate(by[name, depth], "collapsed"), series)
            for name in reversed(runs.values("constraint")) if (name, depth) in by
        ], across=True)
        for depth in sorted(runs.values("depth"))
    ]  # fmt: skip
    caption = "Runs that ended far below their best, with 95 % intervals by seed."
    return Figure("collapse", "Collapses", caption, panels)


def _whisker(name: str, interval: stats.Interval, series: Series) -> Mark:
    return _points(name, interval, series.get(name, NEUTRAL))


def _points(name: str, estimate: stats.Interval | stats.Difference, number: int) -> Mark:
    low, value, high = (100 * x for x in (estimate.low, estimate.value, estimate.high))
    return Mark("points", [value], [], name, number, [low], [high])
