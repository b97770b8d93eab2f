"""Summaries of independent training runs, Welch's test between them, Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from trustclip.stats.intervals import Interval, t_quantile
from trustclip.stats.paired import Difference
from trustclip.stats.scores import Floats


@dataclass(frozen=True)
class RunSummary:
    """Mean and standard deviation of one score over independent training runs.

    Args:
      mean: of the runs' scores, any unit.
      std: sample standard deviation (divisor runs - 1), same unit, >= 0.
      runs: number of runs, >= 2.

    Raises:
      ValueError: if `std` is negative or there are fewer than two runs.

    Example:
      >>> summary = RunSummary.of([0.21, 0.25, 0.24])
      >>> print(f"{summary.mean:.4f} {summary.std:.4f}")
      0.2333 0.0208
    """

    mean: float
    std: float
    runs: int

    def __post_init__(self) -> None:
        if self.runs < 2:
            raise ValueError(f"a spread needs at least 2 runs; got {self.runs}")
        if not self.std >= 0:
            raise ValueError(f"std must be >= 0; got {self.std}")

    @classmethod
    def of(cls, scores: Sequence[float] | Floats) -> "RunSummary":
        """Summary of the runs' scores."""
        array = np.asarray(scores, dtype=float)
        if array.size < 2:
            raise ValueError(f"a spread needs at least 2 runs; got {array.size}")
        return cls(float(array.mean()), float(array.std(ddof=1)), array.size)

    @classmethod
    def from_population_std(cls, mean: float, std: float, runs: int) -> "RunSummary":
        """Summary from a std with divisor `runs`, as numpy computes it unless told otherwise."""
        return cls(mean, std * sqrt(runs / (runs - 1)), runs)

    def interval(self, level: float = 0.95) -> Interval:
        """Student's interval of the mean over runs."""
        half = t_quantile(level, self.runs - 1) * self.std / sqrt(self.runs)
        return Interval(self.mean, self.mean - half, self.mean + half)


def welch(a: RunSummary, b: RunSummary, level: float = 0.95) -> Difference:
    """Welch's t test of two sets of independent runs (Welch, 1947).

    Args:
      a: runs of the first method.
      b: runs of the second.
      level: confidence, in (0, 1).

    Returns:
      `Difference` a - b in the unit of the means; bounds and p are nan if neither spreads.

    Example:
      >>> result = welch(RunSummary(23.42, 1.27, 3), RunSummary(19.75, 0.12, 3))
      >>> print(f"{result.value:.2f} p={result.p:.3f}")
      3.67 p=0.037
    """
    part_a, part_b = a.std**2 / a.runs, b.std**2 / b.runs
    value, variance = a.mean - b.mean, part_a + part_b
    if variance == 0:
        return Difference(value, nan, nan, nan)
    freedom = variance**2 / (part_a**2 / (a.runs - 1) + part_b**2 / (b.runs - 1))
    half = t_quantile(level, freedom) * sqrt(variance)
    p = float(2 * stdtr(freedom, -abs(value) / sqrt(variance)))
    return Difference(value, value - half, value + half, p)


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down adjustment of a family of p-values (Holm, 1979).

    Adjusted p of the i-th smallest of m: max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting
    where it is <= alpha keeps the chance of any false rejection at alpha.

    Args:
      p_values: in [0, 1], shape [m]; nan marks a comparison that was not tested and stays nan.

    Returns:
      Adjusted p-values, float [m], in the given order.

    Raises:
      ValueError: if a value is outside [0, 1].

    Example:
      >>> holm([0.01, 0.04, 0.03])
      array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=float)
    tested = np.flatnonzero(~np.isnan(p))
    if ((p[tested] < 0) | (p[tested] > 1)).any():
        raise ValueError(f"p-values must be in [0, 1]; got {p.tolist()}")
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = p[order] * (tested.size - np.arange(tested.size))
    adjusted = np.full(p.shape, nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
