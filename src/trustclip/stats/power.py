"""Power of a comparison: what it could have detected, what limits it, and seeds for the next."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, nctdtr, nctdtrinc

from trustclip.stats.confidence import Interval, Variance, t_quantile
from trustclip.stats.differences import (
    Difference,
    difference_variance,
    paired_scores,
    runs_variance,
)
from trustclip.stats.scores import (
    Correct,
    Ints,
    Strata,
    Tally,
    benchmarks,
    macro_weights,
    strata_groups,
    tally,
)

#: Most seeds that are counted; more are infinite.
MOST = 100_000
#: Chance to find a gap that is called detectable.
POWER = 0.8
#: With fewer seeds than this, seeds are taken to limit a comparison, whatever the data show: their
#: variance is hardly known.
FEW_SEEDS = 5

Limit = Literal["samples", "problems", "seeds"]


@dataclass(frozen=True)
class Required:
    """What limits a comparison, and how large a gap it can find.

    Args:
      samples: per problem, of what is at hand.
      problems: their number.
      seeds: training seeds of each model.
      detectable: smallest gap that the budget at hand finds with probability `POWER`, a share of
        1 or, of numbers of runs, in their unit; inf for a share above 1, nan where unknown.
      limit: the part that holds most of the variance; seeds where there are 2 to 4 of them.
    """

    samples: int
    problems: int
    seeds: int
    detectable: float = nan
    limit: Limit = "problems"


def required(
    a: Correct | Tally,
    b: Correct | Tally,
    strata: Strata | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    same_seeds: bool = False,
) -> Required:
    r"""What gap the budget at hand can find, and which part of it limits that.

    The variance of the difference is $V_s + V_p + U/K$: seeds, problems (how unevenly the gain is
    spread over them) and sampling, K answers a problem. A gap $D$ is found at confidence `level`
    with probability `POWER` if $D = c \sqrt{v}$, where the noncentral $t$ distribution with the
    variance's degrees of freedom and noncentrality $c$ exceeds the test's quantile with that
    probability. `detectable` solves this for $D$, with the median-unbiased estimate of $v$.

    Args:
      a: 0/1 by [problems, samples] or [seeds, problems, samples], or a `Tally`.
      b: the same problems in the same order.
      strata: benchmark of each problem, for a macro-average.
      k: for Pass@k instead of Mean@K, whose sampling noise is unknown.
      level: confidence of the two-sided test, in (0, 1).
      same_seeds: as in `paired_difference`.

    Example:
      >>> import numpy as np
      >>> a = Tally(np.tile([2, 5, 1, 7], 8)[None], np.full((1, 32), 8))
      >>> b = Tally(np.tile([1, 5, 1, 6], 8)[None], np.full((1, 32), 8))
      >>> found = required(a, b)
      >>> print(f"{found.detectable:.3f} {found.limit}")
      0.033 samples
    """
    scores_a, scores_b, groups = paired_scores(a, b, strata, k)
    tallies = [tally(a), tally(b)]
    problems, seeds = tallies[0].total.shape[1], min(len(scores_a), len(scores_b))
    have = min(int(t.total.min()) for t in tallies), problems, seeds
    v = difference_variance(scores_a, scores_b, groups, same_seeds)
    if isnan(v.total) or seeds == 2:
        return Required(*have, limit="seeds" if seeds == 2 else "problems")
    of_seeds = max(v.seeds - v.cross, 0.0)
    of_rest = v.total - of_seeds
    parts: dict[Limit, float] = {"seeds": of_seeds, "problems": of_rest}
    of_problems = strata_groups(benchmarks(strata), problems)
    drawn = [sampling_variance(one, of_problems) / one.total.shape[0] for one in tallies]
    sampling = nan if k else sum(drawn)
    if not isnan(sampling):
        parts |= {"problems": max(of_rest - sampling, 0.0), "samples": sampling}
    few = 1 < seeds < FEW_SEEDS
    limit: Limit = "seeds" if few else max(parts, key=lambda part: parts[part])
    gap = _detectable(v, level)
    return Required(*have, inf if gap >= 1 else gap, limit)


def required_of_runs(
    a: Sequence[float], b: Sequence[float], *, level: float = 0.95, same_seeds: bool = False
) -> Required:
    """As `required`, of one number of each run; nan for fewer than three runs of either."""
    seeds = min(len(a), len(b))
    gap = nan if seeds < 3 else _detectable(runs_variance(a, b, same_seeds), level)
    return Required(1, 1, seeds, gap, "seeds")


def _detectable(v: Variance, level: float) -> float:
    """The gap that is found with probability `POWER`, at this estimate of the variance."""
    # Half of all variance estimates are below this multiple of the true one: few seeds show less
    # spread than there is.
    usual = float(chdtri(v.freedom, 0.5)) / v.freedom
    # Size of a gap, in standard errors, that the t test detects with this probability.
    errors = float(nctdtrinc(v.freedom, 1 - POWER, t_quantile(level, v.freedom)))
    return errors * sqrt(v.total / usual)


def sampling_variance(counts: Tally, groups: Sequence[Ints]) -> float:
    """Variance of one run's score due to the answers drawn; nan where a problem has one answer."""
    if counts.total.min() < 2:
        return nan
    share = counts.right / counts.total
    of_drawn = share * (1 - share) / (counts.total - 1)
    return float(of_drawn.mean(axis=0) @ macro_weights(groups) ** 2)


def verdict(
    difference: Difference,
    budget: Required,
    *,
    names: tuple[str, str] = ("A", "B"),
    level: float = 0.95,
) -> str:
    """One plain sentence on a comparison.

    An unresolved one names the part of the budget that limits it and the smallest gap that the
    budget finds with probability `POWER`. It gives no number of samples, problems or seeds: such
    a number would be computed from the observed gap, which is mostly noise where it is unresolved.
    One of a single seed each is about two runs, so none of them is called better, and two seeds of
    each tell nothing apart: two runs that fail look like a difference.

    Args:
      difference: from `paired_difference`; its p may have been corrected for a family.
      budget: from `required`.
      names: of the two models.
      level: confidence, in (0, 1): the difference is resolved if p <= 1 - level.

    Returns:
      The sentence, without a full stop.

    Example:
      >>> budget = Required(8, 143, 1, 0.031, "samples")
      >>> verdict(Difference(0.012, -0.01, 0.03, 0.29), budget).partition(", which detect")[0]
      'the result is inconclusive with 8 samples per problem'
      >>> verdict(Difference(0.052, 0.02, 0.08, nan), budget)
      'A scored 5.2 points higher than B [+2.0, +8.0] in one run each, too few to compare methods'
      >>> verdict(Difference(0.052, 0.02, 0.08, 0.001), Required(8, 143, 5, 0.04, "seeds"))
      'A is better than B by 5.2 points [+2.0, +8.0] (p = 0.001)'
    """
    samples, problems = _many(budget.samples, "sample"), _many(budget.problems, "problem")
    better, worse = names if difference.value > 0 else names[::-1]
    points, bounds = f"{abs(difference.value) * 100:.1f} points", _bounds(difference)
    if abs(difference.value) < 1e-12:
        return f"no difference was observed with {samples} on {problems}"
    if budget.seeds == 1 and not difference.p > 1 - level + 1e-12:
        which = "in one run each, too few to compare methods"
        return f"{better} scored {points} higher than {worse}{bounds} {which}"
    if difference.p <= 1 - level + 1e-12:
        return f"{better} is better than {worse} by {points}{bounds} (p = {difference.p:.2g})"
    unclear = "the result is inconclusive with"
    if budget.seeds == 2:
        return f"{unclear} 2 seeds per method: two runs that fail look like a difference"
    limit = {
        "samples": f"{samples} per problem",
        "problems": problems,
        "seeds": f"{_many(budget.seeds, 'seed')} per method",
    }[budget.limit]
    if isnan(budget.detectable):
        return f"{unclear} {samples} on {problems}"
    if budget.detectable == inf:
        return f"{unclear} {limit}: too few to detect any gap"
    points = 100 * budget.detectable
    about = f"{points:.0f} points" if points >= 1.5 else "1 point"
    return f"{unclear} {limit}, which detect gaps of about {about} or more"


def _bounds(difference: Difference) -> str:
    """The interval of a difference that is named by its absolute value, in points."""
    if isnan(difference.low):
        return ""
    ends = (difference.low, difference.high)
    low, high = ends if difference.value > 0 else (-ends[1], -ends[0])
    return f" [{100 * low:+.1f}, {100 * high:+.1f}]"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


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
    r"""Fewest seeds, of each method, with which a gap is found.

    The test is Student's, of $n$ differences paired by seed, or of two times $n$ independent runs.
    A gap $g$ is found with probability $q$ if the noncentral $t$ distribution with $n - 1$ (or
    $2n - 2$) degrees of freedom and noncentrality $g / s_n$ exceeds the test's quantile so often,
    where $s_n = s / \sqrt{n}$, and $s \sqrt{2 / n}$ of independent runs.

    Args:
      std: of a pair's difference, or of a run where seeds are not paired; a share of 1.
      gap: difference to be found, a share of 1, above 0.
      paired: whether runs share their seeds.
      level: confidence of the two-sided test, in (0, 1).
      power: chance to find it, in (0, 1).

    Returns:
      At least 3, because two show no gap; inf where `MOST` do not suffice; nan for a nan spread.

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

    return float(3 + bisect_left(range(3, MOST), True, key=suffices)) if suffices(MOST) else inf


def _miss_chance(freedom: float, distance: float, quantile: float) -> float:
    """Chance that a noncentral t is below the test's quantile."""
    if distance > 30:  # beyond it `nctdtr` is nan; the normal part of t hardly matters there
        return float(chdtrc(freedom, freedom * (distance / quantile) ** 2))
    return float(nctdtr(freedom, distance, quantile))
