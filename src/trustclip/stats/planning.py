r"""How many seeds a comparison needs, from the spread of a pilot's runs.

The test is Student's, of $n$ differences paired by seed, or of two times $n$ independent runs. A
gap $g$ is found with probability $q$ if the noncentral $t$ distribution with $n - 1$ (or $2n - 2$)
degrees of freedom and noncentrality $g / s_n$ exceeds the test's quantile so often, where
$s_n = s / \sqrt{n}$, and $s \sqrt{2 / n}$ of independent runs.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, nctdtr

from trustclip.stats.confidence import Interval, t_quantile

#: Most seeds that are counted; more are infinite.
MOST = 100_000


@dataclass(frozen=True)
class Spread:
    r"""Spread of a pilot: of differences paired by seed, or of runs.

    Args:
      std: standard deviation of a pair's difference, or of a run, a share of 1.
      freedom: its degrees of freedom.
      paired: whether it is of differences.
    """

    std: float
    freedom: int
    paired: bool

    def interval(self, level: float = 0.95) -> Interval:
        """The standard deviation with its interval, from the chi-squared distribution."""
        tails = (1 - level) / 2, (1 + level) / 2
        low, high = (self.std * sqrt(self.freedom / chdtri(self.freedom, tail)) for tail in tails)
        return Interval(self.std, float(low), float(high))


def spread_of(ours: ArrayLike, theirs: ArrayLike | None = None) -> Spread:
    """Spread of differences paired by seed, or of runs.

    Args:
      ours: score of each run, two or more. Shape [seeds].
      theirs: of the same seeds in the same order; None for the spread of the runs themselves.

    Raises:
      ValueError: there is one seed.

    Example:
      >>> print(f"{spread_of([0.60, 0.50, 0.61], [0.0, 0.0, 0.01]).std:.3f}")
      0.058
    """
    d = np.asarray(ours, dtype=float) - (0.0 if theirs is None else np.asarray(theirs))
    if len(d) < 2:
        raise ValueError(f"a spread needs 2 seeds or more; got {len(d)}")
    return Spread(float(d.std(ddof=1)), len(d) - 1, theirs is not None)


def pooled(spreads: Sequence[Spread]) -> Spread:
    """One spread of the runs of two methods: variances weighted by their degrees of freedom."""
    freedom = [one.freedom for one in spreads]
    variance = np.average([one.std**2 for one in spreads], weights=freedom)
    return Spread(sqrt(variance), sum(freedom), False)


def seeds_for(
    std: float, gap: float, *, paired: bool = True, level: float = 0.95, power: float = 0.8
) -> float:
    """Fewest seeds, of each method, with which a gap is found.

    Args:
      std: of a pair's difference, or of a run where seeds are not paired; a share of 1.
      gap: difference to be found, a share of 1, above 0.
      paired: whether runs share their seeds.
      level: confidence of the two-sided test, in (0, 1).
      power: chance to find it, in (0, 1).

    Returns:
      At least 2; inf where `MOST` do not suffice; nan for a nan spread.

    Raises:
      ValueError: the gap is not above 0, or a share is not in (0, 1).

    Example:
      >>> seeds_for(0.05, 0.03), seeds_for(0.05, 0.03, paired=False)
      (24.0, 45.0)
    """
    if not gap > 0:
        raise ValueError(f"a gap is above 0, e.g. 0.03 for 3 points; got {gap}")
    for name, share in (("level", level), ("power", power)):
        if not 0 < share < 1:
            raise ValueError(f"{name} is in (0, 1), e.g. 0.8; got {share}")
    if std != std:
        return nan

    def suffices(seeds: int) -> bool:
        freedom = (1 if paired else 2) * (seeds - 1)
        error = std * sqrt((1 if paired else 2) / seeds)
        if error == 0:
            return True
        return _miss_chance(freedom, gap / error, t_quantile(level, freedom)) <= 1 - power

    return float(2 + bisect_left(range(2, MOST), True, key=suffices)) if suffices(MOST) else inf


def _miss_chance(freedom: float, distance: float, quantile: float) -> float:
    """Chance that a noncentral t is below the test's quantile."""
    if distance > 30:  # beyond it `nctdtr` is nan; the normal part of t hardly matters there
        return float(chdtrc(freedom, freedom * (distance / quantile) ** 2))
    return float(nctdtr(freedom, distance, quantile))
