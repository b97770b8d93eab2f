"""Tuning curves: score over width, over the share of tokens cut, over the distance moved.

The same threshold means different things to different constraints. So trials are compared by what
was measured in them, and a constraint by all of its trials, not by its best one alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from arena_analysis import CELL, Runs, seed_mean

from trustclip import stats
from trustclip.stats.scores import Floats
from trustclip_lab.stats.equivalence import paired_runs

#: What a trial is, of a constraint in a cell.
TRIAL = ("width", "learning_rate")


@dataclass(frozen=True)
class Point:
    """A width of a constraint at one depth, mean over tasks, at the best rate of each task.

    Args:
      width: the threshold; nan where there is none.
      gated: share of tokens cut, measured.
      k3: KL divergence per token from the policy that the updates started from, measured, nats.
      score: at the end, of the tuning seeds; the best of several rates, so a little too high.
    """

    width: float
    gated: float
    k3: float
    score: stats.Interval


def curve(trials: Runs) -> list[Point]:
    """The tuning curve of one constraint at one depth, by rising width.

    Args:
      trials: tuning runs of one constraint at one depth, in any number of tasks.
    """
    points = []
    for (width,), own in trials.by("width").items():
        best = own.at(_places(own, [_best(runs) for runs in own.by(*CELL).values()]))
        value = nan if width == "" else float(width)
        points.append(Point(value, best.mean("gated"), best.mean("k3"), seed_mean(best, "end")))
    return sorted(points, key=lambda point: point.width)


def _best(runs: Runs) -> tuple[object, ...]:
    """Cell and learning rate of the best trial of one width."""
    rates = {key: own.mean("end") for key, own in runs.by(*CELL, "learning_rate").items()}
    return max(rates, key=lambda key: rates[key])


def _places(runs: Runs, keys: Sequence[tuple[object, ...]]) -> list[int]:
    every = zip(*(runs[name].tolist() for name in (*CELL, "learning_rate")), strict=True)
    selection = set(keys)
    return [place for place, key in enumerate(every) if key in selection]


def width_effects(trials: Runs) -> dict[str, list[stats.Difference]]:
    """What a constraint's thresholds, in the order of the plan, are worth against the middle one.

    Each threshold is at its own rate: for every seed the one that is best on the other seeds,
    so that no score is chosen on itself. Differences are averaged over tasks and depths, seed by
    seed.

    Args:
      trials: tuning runs of one design, of two seeds or more.

    Returns:
      By constraint with several thresholds, and last ``"all"``, a difference for each threshold;
      that of the middle one is 0.
    """
    gaps: dict[str, list[Floats]] = {}
    for name, own in trials.constraints.items():
        scores = [_held_out(runs) for runs in own.by("label").values()]
        if len(scores) > 1 and own["width"][0] == own["width"][0]:
            middle = scores[len(scores) // 2]
            gaps[name] = [np.array([one[seed] - middle[seed] for seed in middle]) for one in scores]
    if not gaps:
        return {}
    gaps["all"] = [np.mean(same, axis=0) for same in zip(*gaps.values(), strict=True)]
    return {
        name: [paired_runs(stats.RunSummary.of(one)) for one in own] for name, own in gaps.items()
    }


def _held_out(trials: Runs) -> dict[int, float]:
    """Seed -> score at the rate that is best on the other seeds, mean over tasks and depths."""
    by_seed: dict[int, list[float]] = {}
    for runs in trials.by(*CELL).values():
        seeds = runs.values("seed")
        ends = [_ends(own) for own in runs.by("learning_rate").values()]
        scores = np.array([[of[seed] for seed in seeds] for of in ends])  # [rates, seeds]
        for place, seed in enumerate(seeds):
            best = int(np.delete(scores, place, axis=1).mean(axis=1).argmax())
            by_seed.setdefault(seed, []).append(float(scores[best, place]))
    return {seed: float(np.mean(values)) for seed, values in by_seed.items()}


def _ends(runs: Runs) -> dict[int, float]:
    """Score at the end of each seed, of runs that have each once."""
    return dict(zip(runs["seed"].tolist(), runs["end"].tolist(), strict=True))


@dataclass(frozen=True)
class Sensitivity:
    """How much the choice of width and rate matters to a constraint.

    Args:
      constraint: its label.
      mean: score over all of its trials, the area under the tuning curve.
      minus: that minus the reference's, paired by seed; None for the reference itself.
      best: of its best trial in each cell, on the tuning seeds.
      near: share of trials at most three points below the best of their cell.
      edge: share of cells whose best trial lies at an end of the grid of rates.
    """

    constraint: str
    mean: stats.Interval
    minus: stats.Difference | None
    best: float
    near: float
    edge: float


#: Distance from the best trial that counts as near, a share of 1.
NEAR = 0.03


def sensitivities(trials: Runs, reference: str) -> list[Sensitivity]:
    """Every constraint over all of its trials, the highest mean first.

    Args:
      trials: tuning runs of one design.
      reference: constraint that the others are compared with.
    """
    by = trials.constraints
    against = _over_trials(by[reference]) if reference in by else {}
    results = []
    for name, own in by.items():
        means = _over_trials(own)
        gaps = [means[seed] - against[seed] for seed in means if seed in against]
        minus = paired_runs(stats.RunSummary.of(gaps)) if name != reference and gaps else None
        mean = stats.RunSummary.of([*means.values()]).interval()
        results.append(Sensitivity(name, mean, minus, *_of_best(own)))
    return sorted(results, key=lambda one: -one.mean.value)


def _of_best(trials: Runs) -> tuple[float, float, float]:
    """Score of the best trial of each cell, share of trials near it, and of it at an edge."""
    numbers = []
    for runs in trials.by(*CELL).values():
        scores = {key: one.mean("end") for key, one in runs.by(*TRIAL).items()}
        top = max(scores, key=lambda key: scores[key])
        rates = runs["learning_rate"]
        near = np.mean([score >= scores[top] - NEAR for score in scores.values()])
        numbers.append((scores[top], float(near), float(top[1] in (rates.min(), rates.max()))))
    best, near, edge = np.mean(numbers, axis=0).tolist()
    return best, near, edge


def _over_trials(trials: Runs) -> dict[int, float]:
    """Mean over trials and cells, of each seed."""
    return {key[0]: own.mean("end") for key, own in trials.by("seed").items()}


def at_equal(ours: Runs, theirs: Runs, column: str) -> stats.RunSummary | None:
    """Ours minus theirs at equal measured gate share, or equal measured distance moved.

    In each cell and at each learning rate both have, the score of each seed is a function of what
    was measured (the mean over seeds of each width, on a logarithmic scale), linear between the
    widths. Their difference is averaged over the range that both cover, then over rates and
    cells. No trial is chosen, so nothing is chosen too high.

    Args:
      ours: tuning runs of a constraint.
      theirs: of another, with the same seeds.
      column: what was measured, for example ``"gated"`` or ``"k3"``.

    Returns:
      Differences over seeds; None where the two have no common range.
    """
    names = (*CELL, "learning_rate")
    others = theirs.by(*names)
    gaps: dict[int, list[float]] = {}
    for key, own in ours.by(*names).items():
        if key not in others:
            continue
        a, b = _lines(own, column), _lines(others[key], column)
        if a is None or b is None:
            continue
        low, high = max(a[0][0], b[0][0]), min(a[0][-1], b[0][-1])
        if low >= high:
            continue
        grid = np.linspace(low, high, 33)
        for seed in a[1].keys() & b[1].keys():
            gap = np.interp(grid, a[0], a[1][seed]) - np.interp(grid, b[0], b[1][seed])
            gaps.setdefault(seed, []).append(float(gap.mean()))
    rows = [float(np.mean(values)) for values in gaps.values()]
    return stats.RunSummary.of(rows) if len(rows) > 1 else None


def _lines(trials: Runs, column: str) -> tuple[Floats, dict[int, Floats]] | None:
    """Logarithm of what was measured, by width and rising, and each seed's scores there."""
    widths = [(own.mean(column), _ends(own)) for own in trials.by("width").values()]
    widths = sorted(((x, scores) for x, scores in widths if x > 0), key=lambda width: width[0])
    if len(widths) < 2:
        return None
    seeds = set.intersection(*(set(scores) for _, scores in widths))
    places = np.log([x for x, _ in widths])
    return places, {s: np.array([scores[s] for _, scores in widths]) for s in sorted(seeds)}
