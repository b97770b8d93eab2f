"""Scores of one run over its updates: area under the curve, and time to a threshold."""

from collections.abc import Sequence
from math import nan

import numpy as np
from numpy.typing import ArrayLike

from trustclip.stats.scores import Floats, Ints, Tally


def trapezoids(at: Sequence[int]) -> Ints:
    r"""Weight of each evaluation in the area under a learning curve, not normalised.

    The trapezoidal rule over the updates $t_0 < \dots < t_m$ has the weights
    $w_j = t_{j+1} - t_{j-1}$, with $t_{-1} = t_0$ and $t_{m+1} = t_m$, twice the usual ones:
    whole numbers.

    Raises:
      ValueError: fewer than two evaluations, or their updates do not rise.

    Example:
      >>> trapezoids([0, 16, 32, 40])
      array([16, 32, 24,  8])
    """
    times = np.asarray(at, dtype=np.int64)
    if times.size < 2 or (np.diff(times) <= 0).any():
        raise ValueError(f"an area needs two evaluations or more, at rising updates; got {[*at]}")
    return np.append(times[1:], times[-1]) - np.append(times[0], times[:-1])


def area(at: Sequence[int], scores: ArrayLike) -> float:
    r"""Area under a learning curve over its length: $\sum_j w_j s_j / \sum_j w_j$.

    The mean height of the line through the evaluations, in the unit of the score; see
    `trapezoids`.

    Example:
      >>> area([0, 10, 20], [0.0, 1.0, 1.0]), area([0, 10, 40], [0.0, 1.0, 1.0])
      (0.75, 0.875)
    """
    return float(np.average(np.asarray(scores, dtype=float), weights=trapezoids(at)))


def area_tally(at: Sequence[int], evaluations: Sequence[Tally]) -> Tally:
    """Answers of all evaluations of a run, counted so often that their share is the area.

    Of each problem, right over total is the `area` under its own curve, so that intervals and
    differences of areas are those of any other score. What depends on the number of answers drawn
    (Pass@k, the variance of sampling) has no meaning here.

    Example:
      >>> counts = [Tally(np.array([[right]]), np.array([[4]])) for right in (0, 4, 4)]
      >>> found = area_tally([0, 10, 40], counts)
      >>> found.right / found.total
      array([[0.875]])
    """
    right, total = (np.stack([getattr(e, n) for e in evaluations]) for n in ("right", "total"))
    weights = trapezoids(at)
    weights //= np.gcd.reduce(weights)
    common = np.lcm.reduce(total, axis=0)
    counted = np.tensordot(weights, right * (common // total), axes=1)
    return Tally(counted, common * int(weights.sum()))


def reached(at: Sequence[int], scores: Sequence[float], threshold: float) -> float:
    """First update at which a score is at least the threshold; nan for never.

    Example:
      >>> reached([0, 16, 32], [0.1, 0.3, 0.5], 0.3), reached([0], [0.1], 0.3)
      (16.0, nan)
    """
    hits = (t for t, s in zip(at, scores, strict=True) if s >= threshold)
    return float(next(hits, nan))


def restricted(times: ArrayLike, ends: ArrayLike) -> Floats:
    """Times to a threshold, those that never came counted as long as the run was.

    Of runs that are equally long the mean of these is Kaplan and Meier's restricted mean.

    Args:
      times: of each run; nan for never.
      ends: how long each run was, in the same unit.

    Example:
      >>> restricted([16.0, nan], [96, 96])
      array([16., 96.])
    """
    values = np.asarray(times, dtype=float)
    return np.where(np.isnan(values), np.asarray(ends, dtype=float), values)
