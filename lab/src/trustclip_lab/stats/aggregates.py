"""Scores of many runs over several tasks: interquartile mean, profile, chance of improvement.

The definitions are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv 2108.13264. Runs are resampled seed by seed within each task, and a
seed takes all its runs of the task along, so what two runs share stays together.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from trustclip.stats.confidence import Interval
from trustclip.stats.scores import Floats

#: Resamples of the seeds, and the random numbers they come from.
RESAMPLES, SOURCE = 2000, 0


def interquartile_mean(scores: Floats) -> float:
    r"""Mean of the middle half of all scores.

    The $\lfloor n/4 \rfloor$ lowest and the same number of the highest of $n$ are left out.

    Args:
      scores: of any shape.

    Example:
      >>> interquartile_mean(np.array([0.0, 0.4, 0.5, 0.9]))
      0.45
    """
    ordered = np.sort(np.asarray(scores, dtype=float).ravel())
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def interquartile_interval(
    tasks: Sequence[Floats], level: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Interquartile mean over all runs of all tasks, with the percentiles of its bootstrap.

    Args:
      tasks: scores of each task, [seeds, settings]: a row holds all runs of one seed.
      level: confidence, in (0, 1).
      resamples: of the seeds of each task.

    Example:
      >>> result = interquartile_interval([np.linspace(0, 1, 40)[:, None]])
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]")
      0.50 [0.38, 0.62]
    """
    values = np.concatenate([task.ravel() for task in tasks])
    weights = np.concatenate(
        [np.repeat(c, task.shape[1], axis=1) for c, task in _resamples(tasks, resamples)], axis=1
    )
    order = np.argsort(values, kind="stable")
    cut = values.size // 4
    # Of the sorted resample, the places before each value and after it, within the middle half.
    ends = np.clip(np.cumsum(weights[:, order], axis=1), cut, values.size - cut)
    counts = np.diff(ends, axis=1, prepend=cut)
    means = counts @ values[order] / (values.size - 2 * cut)
    return _percentiles(interquartile_mean(values), means, level)


def profile(
    tasks: Sequence[Floats],
    thresholds: Floats,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> list[Interval]:
    """Performance profile: share of runs that score above each threshold, mean over tasks.

    Args:
      tasks: scores of each task, [seeds, settings].
      thresholds: of the score.
      level: confidence of each interval by itself, in (0, 1).
      resamples: of the seeds of each task.

    Example:
      >>> [share.value for share in profile([np.array([[0.2], [0.6]])], np.array([0.1, 0.5, 0.9]))]
      [1.0, 0.5, 0.0]
    """
    above = [(task[..., None] > thresholds).mean(axis=1) for task in tasks]
    means = np.mean([c @ a / len(a) for c, a in _resamples(above, resamples)], axis=0)
    values = np.mean([a.mean(axis=0) for a in above], axis=0)
    return [_percentiles(float(v), means[:, i], level) for i, v in enumerate(values)]


def improvement(
    ours: Sequence[Floats],
    theirs: Sequence[Floats],
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    r"""Probability of improvement: that a random run of ours scores above a random one of theirs.

    $P(X > Y) + \frac{1}{2} P(X = Y)$ of each task and setting (Mann and Whitney's statistic as a
    share), mean over settings and tasks. 0.5 is no difference. It compares runs of all seeds with
    each other, so what makes one seed's problem harder than another's counts as noise.

    Args:
      ours: scores of each task, [seeds, settings].
      theirs: of the same tasks, settings and seeds.
      level: confidence, in (0, 1).
      resamples: of the seeds of each task, the same for both.

    Example:
      >>> result = improvement([np.array([[0.3], [0.5]])], [np.array([[0.2], [0.4]])])
      >>> result.value
      0.75
    """
    wins = [
        ((x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])).mean(axis=2)
        for x, y in zip(ours, theirs, strict=True)
    ]
    value = float(np.mean([w.mean() for w in wins]))
    # A resample would compare a seed's run with its own partner, and no other pair is as alike,
    # more often than the runs do: the spread is that of the other pairs.
    estimates = []
    for c, w in _resamples(wins, resamples):
        pairs = (c @ w * c).sum(1) - c**2 @ np.diag(w)
        estimates.append(pairs / np.maximum(c.sum(1) ** 2 - (c**2).sum(1), 1))
    spread = np.mean(estimates, axis=0)
    return _percentiles(value, spread - spread.mean() + value, level)


def crossed_interval(values: Floats, level: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """Mean of a table whose rows and columns are both random, with its bootstrap percentiles.

    Rows and columns are resampled independently of each other, with the values where they
    cross (Owen, "The pigeonhole bootstrap", 2007): seeds of a training and problems of its test,
    say. It errs on the wide side.

    Args:
      values: of shape [rows, columns], such as differences of seeds and problems.
      level: confidence, in (0, 1).
      resamples: of both.

    Example:
      >>> table = np.array([[0.1, 0.2], [0.3, 0.4]])
      >>> result = crossed_interval(np.tile(table, (10, 10)))
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]")
      0.25 [0.20, 0.30]
    """
    rows, columns = (_counts(i, size, resamples) / size for i, size in enumerate(values.shape))
    means = np.einsum("br,rc,bc->b", rows, values, columns, optimize=True)
    return _percentiles(float(values.mean()), means, level)


def _resamples(tasks: Sequence[Floats], resamples: int) -> list[tuple[Floats, Floats]]:
    """How often each resample holds each seed [resamples, seeds], with the task's array."""
    return [(_counts(i, len(task), resamples), task) for i, task in enumerate(tasks)]


@lru_cache(maxsize=32)
def _counts(task: int, seeds: int, resamples: int) -> Floats:
    rng = np.random.default_rng([SOURCE, task])
    return rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples).astype(float)


def _percentiles(value: float, estimates: Floats, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return Interval(value, float(low), float(high))
