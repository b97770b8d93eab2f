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
