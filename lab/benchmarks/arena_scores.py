"""Scores of many runs over several tasks, as the arena reports them.

Profile and chance of improvement are those of Agarwal et al., "Deep Reinforcement Learning at the
Edge of the Statistical Precipice", arXiv 2108.13264, with the resamples of
`trustclip_lab.stats.aggregates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy.special import chdtrc, stdtr

from trustclip.stats.confidence import Interval, RunSummary, t_quantile
from trustclip.stats.differences import Difference
from trustclip.stats.scores import Floats
from trustclip_lab.stats.aggregates import RESAMPLES, _counts, _percentiles, _resamples


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


def adjusted_runs(values: Floats, covariate: Floats, level: float = 0.95) -> Difference:
    r"""What a difference would be in runs that are equal in something else.

    The intercept $a$ of the least-squares line $y_i = a + b x_i$ through the differences of each
    seed, with Student's interval and test of $n - 2$ degrees of freedom: entropies at equal score,
    say. Far from $x = 0$ it is an extrapolation, and its interval widens.

    Args:
      values: differences (ours - theirs) of each seed, three or more.
      covariate: differences of what is held equal, of the same seeds.
      level: confidence, in (0, 1).

    Returns:
      `Difference`; nan bounds and p where `covariate` does not vary.

    Example:
      >>> import numpy as np
      >>> x = np.array([0.0, 0.1, 0.2, 0.3])
      >>> result = adjusted_runs(0.5 + 2 * x + np.array([0.01, -0.01, -0.01, 0.01]), x)
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]")
      0.50 [0.45, 0.55]
    """
    x, y = covariate - covariate.mean(), values - values.mean()
    squares, freedom = float(x @ x), len(values) - 2
    if squares == 0 or freedom < 1:
        return Difference(float(values.mean()), nan, nan, nan)
    slope = float(x @ y) / squares
    intercept = float(values.mean() - slope * covariate.mean())
    variance = float(((y - slope * x) ** 2).sum()) / freedom
    error = sqrt(variance * (1 / len(values) + float(covariate.mean()) ** 2 / squares))
    half = t_quantile(level, freedom) * error
    p = 2 * float(stdtr(freedom, -abs(intercept) / error)) if error else float(intercept == 0)
    return Difference(intercept, intercept - half, intercept + half, p)


@dataclass(frozen=True)
class Heterogeneity:
    """Whether one difference, measured in several places, is one number.

    Args:
      q: Cochran's Q.
      freedom: its degrees of freedom, one less than there are places.
      p: of "the same difference everywhere".
    """

    q: float
    freedom: int
    p: float


def heterogeneity(differences: Sequence[RunSummary]) -> Heterogeneity:
    r"""Cochran's test of differences $d_i$ with standard errors $s_i$ (Cochran, 1954).

    $Q = \sum_i (d_i - \bar d)^2 / s_i^2$ with $\bar d$ their mean weighted by $1/s_i^2$, against
    $\chi^2$ of one degree less than there are differences. They are taken as independent.

    Args:
      differences: mean and spread over seeds in each place, all with some spread.

    Returns:
      `Heterogeneity`; nan where a difference does not spread or there is only one.

    Example:
      >>> result = heterogeneity([RunSummary(0.05, 0.1, 100), RunSummary(-0.01, 0.1, 100)])
      >>> print(f"{result.q:.1f} {result.freedom} {result.p:.1e}")
      18.0 1 2.2e-05
    """
    means = np.array([d.mean for d in differences])
    errors = np.array([d.std / sqrt(d.runs) for d in differences])
    if len(means) < 2 or (errors == 0).any():
        return Heterogeneity(nan, len(means) - 1, nan)
    weights = errors**-2
    q = float(weights @ (means - weights @ means / weights.sum()) ** 2)
    return Heterogeneity(q, len(means) - 1, float(chdtrc(len(means) - 1, q)))
