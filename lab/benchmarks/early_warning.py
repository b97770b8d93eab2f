"""Early warning: whether an early number of a run predicts that the run will collapse."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from trustclip.stats import Interval

Floats = NDArray[np.float64]

#: Resamples of a bootstrap over seeds.
RESAMPLES = 2000


@dataclass(frozen=True)
class Observation:
    """One run as an early warning sees it.

    Args:
      seed: of the run; runs of one seed share a problem and the first weights.
      among: what it is compared within, a sampler say.
      collapsed: whether it did so later.
      value: the early number, higher for more danger.
    """

    seed: int
    among: Hashable
    collapsed: bool
    value: float


def auc(runs: Sequence[Observation]) -> float:
    r"""Area under the ROC curve: $P(v_{collapsed} > v_{other}) + \frac12 P(=)$ over pairs of runs.

    Only pairs within the same `Watched.among` count. nan where there is no such pair.

    Example:
      >>> runs = [Observation(0, "a", True, 2.0), Observation(1, "a", False, 1.0),
      ...         Observation(0, "b", True, 0.5), Observation(1, "b", False, 0.5)]
      >>> auc(runs), auc(runs[:1])
      (0.75, nan)
    """
    won, pairs = _pairs(runs)
    return float(won.sum() / pairs.sum()) if pairs.sum() else nan


def _pairs(runs: Sequence[Observation]) -> tuple[Floats, Floats]:
    """Pairs that the collapsed run wins, and all pairs, by both seeds. Each [seeds, seeds]."""
    place = {seed: i for i, seed in enumerate(sorted({run.seed for run in runs}))}
    won, pairs = np.zeros((len(place),) * 2), np.zeros((len(place),) * 2)
    groups: dict[Hashable, list[Observation]] = {}
    for run in runs:
        groups.setdefault(run.among, []).append(run)
    for members in groups.values():
        sides = [[run for run in members if run.collapsed is c] for c in (True, False)]
        fallen, others = (np.array([run.value for run in side]) for side in sides)
        seeds = [np.array([place[run.seed] for run in side], dtype=int) for side in sides]
        if not fallen.size or not others.size:
            continue
        wins = (fallen[:, None] > others) + 0.5 * (fallen[:, None] == others)
        at = (np.repeat(seeds[0], others.size), np.tile(seeds[1], fallen.size))
        np.add.at(won, at, wins.ravel())
        np.add.at(pairs, at, 1.0)
    return won, pairs


def auc_interval(runs: Sequence[Observation], level: float = 0.95, seed: int = 0) -> Interval:
    """`auc` with a percentile interval of a bootstrap over seeds, which the runs are clustered by.

    Args:
      runs: of several seeds.
      level: confidence, in (0, 1).
      seed: of the resampling.
    """
    won, pairs = _pairs(runs)
    seeds = len(won)
    random = np.random.default_rng(seed)
    # How often each seed is drawn; a pair counts as often as both its seeds. [resamples, seeds]
    times = random.multinomial(seeds, np.full(seeds, 1 / max(seeds, 1)), RESAMPLES).astype(float)
    above, below = (((times @ m) * times).sum(1) for m in (won, pairs))
    areas = above[below > 0] / below[below > 0]
    if not areas.size:
        return Interval(auc(runs), nan, nan)
    low, high = np.quantile(areas, [(1 - level) / 2, (1 + level) / 2])
    return Interval(auc(runs), float(low), float(high))


@dataclass(frozen=True)
class Alarm:
    """How an alarm at a threshold would have performed.

    Args:
      threshold: that a share of the runs without a collapse ever exceed.
      recall: share of the collapses that it preceded.
      lead: median generations between alarm and collapse, of those.
    """

    threshold: float
    recall: float
    lead: float


def alarm(
    fallen: Sequence[tuple[Sequence[float], int]], others: Sequence[Sequence[float]], false: float
) -> Alarm:
    """An alarm at the first generation whose number exceeds a threshold.

    Args:
      fallen: of each collapsed run, the number in each generation and the generation of the fall.
      others: of each other run, the number in each generation.
      false: share of the other runs that may raise it.

    Example:
      >>> alarm([([0.1, 0.9, 0.9], 2), ([0.1, 0.1, 0.1], 2)], [[0.2, 0.3]] * 20, 0.05)
      Alarm(threshold=0.3, recall=0.5, lead=1.0)
    """
    threshold = float(np.quantile([max(values) for values in others], 1 - false))
    leads = []
    for values, fell in fallen:
        first = next((i for i, value in enumerate(values[:fell]) if value > threshold), None)
        if first is not None:
            leads.append(fell - first)
    recall = len(leads) / len(fallen) if fallen else nan
    return Alarm(threshold, recall, float(np.median(leads)) if leads else nan)
