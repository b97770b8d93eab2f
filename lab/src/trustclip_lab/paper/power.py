"""What the two tests of Table 3 could have found: their power with three runs a method."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import nctdtr

from trustclip.stats import RunSummary, welch
from trustclip_lab.paper.cells import RUNS

#: Gaps in points whose detection is reported.
GAPS = (1.0, 2.0, 3.0, 5.0)
_DRAWS = 2_000


@dataclass(frozen=True)
class Power:
    """Chance that a true gap between ATR and one of the baselines is found.

    Args:
      metric: ``"mean8"`` or ``"pass8"``.
      std: of a method's runs, pooled over all methods, in points.
      gaps: in points.
      welch: by Welch's test at Holm's first step, for each gap.
      dunnett: by Dunnett's test, for each gap.
    """

    metric: str
    std: float
    gaps: tuple[float, ...]
    welch: tuple[float, ...]
    dunnett: tuple[float, ...]


def power_of(metric: str, summaries: Sequence[RunSummary], level: float = 0.95) -> Power:
    """Power of both tests where one baseline is behind and the others equal ATR.

    Runs are normal and vary as those of all methods together do; Welch's part is simulated.

    Args:
      metric: which one these are of.
      summaries: of each method, ATR among them.
      level: confidence of the family of comparisons.

    Example:
      >>> result = power_of("mean8", [RunSummary(20.0, 0.76, 3)] * 12)
      >>> [round(chance, 1) for chance in result.welch + result.dunnett]
      [0.0, 0.1, 0.2, 0.6, 0.1, 0.6, 1.0, 1.0]
    """
    baselines = len(summaries) - 1
    std = float(np.sqrt(np.mean([summary.std**2 for summary in summaries])))
    error = std * np.sqrt(2 / RUNS)
    freedom = len(summaries) * (RUNS - 1)
    bound = dunnett_bound(baselines, freedom, level)
    return Power(
        metric,
        std,
        GAPS,
        tuple(_welch_finds(gap / std, (1 - level) / baselines) for gap in GAPS),
        tuple(float(1 - nctdtr(freedom, gap / error, bound)) for gap in GAPS),
    )


@cache
def dunnett_bound(baselines: int, freedom: int, level: float) -> float:
    """Dunnett's two-sided bound for equal groups: the `level` quantile of the largest |t|.

    Example:
      >>> print(f"{dunnett_bound(11, 24, 0.95):.1f}")
      3.0
    """
    rng = np.random.default_rng(0)
    draws = 200_000
    control = rng.normal(size=(draws, 1))
    scale = np.sqrt(2 * rng.chisquare(freedom, size=draws) / freedom)
    largest = np.abs(rng.normal(size=(draws, baselines)) - control).max(axis=1) / scale
    return float(np.quantile(largest, level))


@cache
def _welch_finds(effect: float, alpha: float) -> float:
    """Share of simulated pairs of three runs, `effect` stds apart, with p <= alpha."""
    runs = np.random.default_rng(0).normal(size=(_DRAWS, 2, RUNS))
    pairs = [(RunSummary.of(a + effect), RunSummary.of(b)) for a, b in runs]
    return float(np.mean([welch(a, b).p <= alpha for a, b in pairs]))
