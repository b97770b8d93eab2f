"""Rates of the same seeds under two methods: how much more often one collapses than the other."""

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtri

from trustclip.stats.confidence import wilson
from trustclip.stats.differences import Difference


def mcnemar(ours_alone: int, theirs_alone: int) -> float:
    """McNemar's exact test of two rates of the same seeds.

    Under "no difference" each seed on which the two differ is a fair coin.

    Args:
      ours_alone: seeds on which the event occurs in ours and not in theirs.
      theirs_alone: the other way round.

    Returns:
      The two-sided p-value; 1 where no seed differs.

    Example:
      >>> mcnemar(1, 7)
      0.0703125
    """
    fewer, all_ = min(ours_alone, theirs_alone), ours_alone + theirs_alone
    return min(2 * float(bdtr(fewer, all_, 0.5)), 1.0) if all_ else 1.0


def paired_rates(ours: ArrayLike, theirs: ArrayLike, level: float = 0.95) -> Difference:
    r"""Difference of two rates of the same seeds, with Newcombe's interval and McNemar's p.

    With $\hat p_1, \hat p_2$ the rates, $l_i, u_i$ Wilson's bounds of each and $\phi$ the
    correlation of the pairs (corrected for continuity), the bounds are
    $d - \sqrt{a^2 - 2\phi a b + b^2}$, $a = \hat p_1 - l_1$, $b = u_2 - \hat p_2$, and the mirror
    image (Newcombe, 1998, method 10). They do not close where neither rate is above 0.

    Args:
      ours: 0/1 of each seed.
      theirs: of the same seeds in the same order.
      level: confidence, in (0, 1).

    Returns:
      `Difference` ours - theirs, within [-1, 1].

    Raises:
      ValueError: if the two differ in length or are empty.

    Example:
      >>> result = paired_rates([1] * 14 + [0] * 6, [1] * 10 + [0] * 10)
      >>> print(f"{result.value:.2f} [{result.low:.3f}, {result.high:.3f}] p={result.p:.3f}")
      0.20 [-0.001, 0.374] p=0.125

    References:
      Newcombe, "Improved confidence intervals for the difference between binomial proportions
      based on paired data", Statistics in Medicine 17 (1998).
    """
    x, y = np.asarray(ours, dtype=bool), np.asarray(theirs, dtype=bool)
    if x.shape != y.shape or not x.size:
        raise ValueError(f"the same seeds in both? ours has {x.size}, theirs has {y.size}")
    both, neither = int((x & y).sum()), int((~x & ~y).sum())
    alone, other = int((x & ~y).sum()), int((~x & y).sum())
    n, first, second = x.size, both + alone, both + other
    value = (alone - other) / n
    phi = _correlation(both, alone, other, neither)
    p1, p2, z = first / n, second / n, float(ndtri((1 + level) / 2))
    (l1, u1), (l2, u2) = wilson(p1, n, z), wilson(p2, n, z)
    below = sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    above = sqrt((u1 - p1) ** 2 - 2 * phi * (u1 - p1) * (p2 - l2) + (p2 - l2) ** 2)
    return Difference(value, value - below, value + above, mcnemar(alone, other))


def _correlation(both: int, alone: int, other: int, neither: int) -> float:
    """Correlation of the pairs, corrected for continuity; 0 where a margin is empty."""
    margins = (both + alone) * (other + neither) * (both + other) * (alone + neither)
    if not margins:
        return 0.0
    excess, n = both * neither - alone * other, both + alone + other + neither
    if excess > 0:
        excess = max(excess - n / 2, 0.0)
    return excess / sqrt(margins)
