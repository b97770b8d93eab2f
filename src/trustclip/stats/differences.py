"""Differences of two models, and the p-value of each: paired by problem, or of whole runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, stdtr

from trustclip.stats.confidence import (
    RunSummary,
    Variance,
    atypical_problems,
    mean_variance,
    t_quantile,
)
from trustclip.stats.scores import (
    Correct,
    Floats,
    Ints,
    Strata,
    Tally,
    by_family,
    macro_average,
    macro_weights,
    problem_scores,
    strata_groups,
    tally,
)

RESAMPLES = 10_000
# Of the seeds in the degrees of freedom of a difference. With one model noisy and the other steady,
# 2 or 3 seeds each, the test's size is 7 to 11 % at 3 (`SEED_CAUTION`) and 3 to 6 % at 20.
DIFFERENCE_CAUTION = 20.0
# Two runs that collapse look like a difference: with half of the runs collapsing, Student's test of
# two pairs calls 9 % of equal methods different. Exchanging whole runs between the methods is an
# exact test, and these are its smallest p-values: of two pairs, and of two runs against two.
OF_TWO_PAIRS, OF_TWO_AND_TWO = 1 / 2, 1 / 3
# Sampled sign flips beyond the observed difference; with fewer, the tail is sampled instead.
ENOUGH_HITS = 30


@dataclass(frozen=True)
class Difference:
    """A difference a - b, its confidence bounds and the two-sided p-value of "no difference".

    Bounds and p are nan where the data do not determine them.
    """

    value: float
    low: float
    high: float
    p: float


def paired_difference(
    a: Correct | Tally,
    b: Correct | Tally,
    strata: Strata | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    same_seeds: bool = False,
    resamples: int = RESAMPLES,
) -> Difference:
    r"""Difference of two models matched by problem.

    One seed each. Interval: stratified cluster bootstrap, problems resampled within their
    benchmark, taken at the wider percentiles that make it as long as Student's interval for
    normal data (Hesterberg, 2015). p: sign-flip permutation; under "no difference" a and b may be
    swapped on any problem. Every pattern of signs is used if there are at most `resamples`,
    so with single answers it is the exact McNemar test; where few of the sampled patterns are as
    extreme as the data, the tail is estimated by importance sampling, so p has no lower limit.

    Several seeds each. Few seeds cannot be bootstrapped (3 seeds give 10 resamples), so the
    interval and p are Student's with the crossed variance of problems and seeds
    (`mean_variance`); p is no less than the sign-flip p. Runs that share a seed share what the
    seed decides (data order, the model they start from), so with `same_seeds` the seeds' part is
    that of the differences seed by seed; else it is the sum of both models', with freedom halfway
    from Welch's to that of one model. Where numbers of seeds differ, it is that of the smaller
    one: a few runs that happen to agree must not borrow the certainty of many others. Two seeds of
    a model give no bounds, and p is no less than that of exchanging two runs.

    The interval stays open when a and b hardly differ: its half width $h$ is replaced by
    $\sqrt{(u h^2 + g^2)/(u + 1)}$ if that is larger, with $u$ the number of problems whose
    difference is not the commonest one, and $g = 1 - ((1 - level)/2)^{1/n}$ the share of problems
    that may differ although none of $n$ was seen to.

    Args:
      a: 0/1 by [problems, samples] or [seeds, problems, samples], or a `Tally`.
      b: the same problems in the same order; the numbers of samples and seeds may differ.
      strata: benchmark of each problem, for a macro-average; or (benchmark, family) where problems
        come in families, which are then the independent units.
      k: compare Pass@k instead of Mean@K.
      level: confidence, in (0, 1).
      same_seeds: whether seed s of a and seed s of b are the same seed of one design.
      resamples: number of bootstrap resamples and of sign flips.

    Returns:
      `Difference` in [-1, 1]; bounds are nan if a benchmark has a single problem.

    Raises:
      ValueError: if the numbers of problems differ, if one of the models alone has several seeds,
        or if `same_seeds` and their numbers differ.

    Example:
      >>> a = [[1, 1, 1, 0]] * 12 + [[0, 0, 0, 0]] * 12
      >>> b = [[1, 0, 0, 0]] * 12 + [[0, 0, 0, 0]] * 12
      >>> result = paired_difference(a, b)
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}] p={result.p:.4f}")
      0.25 [0.14, 0.36] p=0.0005

    References:
      Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69
      (2015). Owen, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1 (2007).
    """
    scores_a, scores_b, groups = paired_scores(a, b, strata, k)
    d = np.round(scores_a.mean(axis=0) - scores_b.mean(axis=0), 12)
    value = float(macro_average(d[None], groups))
    variance = difference_variance(scores_a, scores_b, groups, same_seeds)
    rng = np.random.default_rng(0)
    p = _sign_flip_p(d, groups, resamples, rng)
    quantile = t_quantile(level, variance.freedom)
    if np.isnan(quantile):
        return Difference(value, nan, nan, p)
    if (few := min(len(scores_a), len(scores_b))) > 1:
        half, of_runs = _of_runs(value, variance, few, same_seeds, level)
        p, low, high = max(p, of_runs), -half, half
        if few == 2:
            return Difference(value, nan, nan, p)
    else:
        low, high = _bootstrap_bounds(d, groups, quantile, resamples, rng)
    low, high = _widened(low, high, d, groups, level)
    return Difference(value, max(value + low, -1.0), min(value + high, 1.0), p)


def difference_variance(
    scores_a: Floats, scores_b: Floats, groups: Sequence[Ints], same_seeds: bool
) -> Variance:
    """Variance of the difference of two models' scores [seeds, problems]."""
    if not same_seeds:
        arms = [scores_a, scores_b]
    elif scores_a.shape == scores_b.shape:
        arms = [scores_a - scores_b]
    else:
        raise ValueError(
            f"the same seeds in both models? a has {scores_a.shape[0]}, b has {scores_b.shape[0]}"
        )
    d = np.round(scores_a.mean(axis=0) - scores_b.mean(axis=0), 12)
    variance = mean_variance(d, arms, groups, DIFFERENCE_CAUTION)
    seeds = sorted(map(len, (scores_a, scores_b)))
    return variance if same_seeds or seeds == [1, 1] else replace(
        variance, freedom=_unpaired_freedom(variance.freedom, seeds)
    )  # fmt: skip


def _unpaired_freedom(welch: float, seeds: Sequence[int]) -> float:
    """Freedom of the difference of two sets of independent runs, the smaller number first.

    Welch's formula takes the ratio of their variances as known. With 3 runs each its test calls 6 %
    of equal methods different where one is 6 times as noisy; halfway to the freedom of the smaller
    set that is 5 %, and with unequal numbers all the way.
    """
    few, many = seeds[0] - 1, seeds[-1] - 1
    return min(welch, few) if few < many else (welch + few) / 2


def paired_scores(
    a: Correct | Tally, b: Correct | Tally, strata: Strata | None = None, k: int | None = None
) -> tuple[Floats, Floats, list[Ints]]:
    """Scores [seeds, units] of two models, checked to be comparable, and the units by benchmark.

    A unit is a problem, or a family of problems.
    """
    scores_a, scores_b = problem_scores(tally(a), k), problem_scores(tally(b), k)
    (seeds_a, problems_a), (seeds_b, problems_b) = scores_a.shape, scores_b.shape
    if problems_a != problems_b:
        raise ValueError(
            f"a and b must hold the same problems in the same order; a has {problems_a}, "
            f"b has {problems_b}: problems {min(problems_a, problems_b)} and up have no partner"
        )
    if (seeds_a == 1) != (seeds_b == 1):
        raise ValueError(
            f"a has {seeds_a} seed(s) and b has {seeds_b}: give each one seed, or each at least "
            "two, or how much training runs differ is unknown for one of them"
        )
    (scores_a, tasks), (scores_b, _) = by_family(scores_a, strata), by_family(scores_b, strata)
    return scores_a, scores_b, strata_groups(tasks, scores_a.shape[1])


def _bootstrap_bounds(
    d: Floats, groups: Sequence[Ints], quantile: float, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Bootstrap percentiles of (resampled - observed) macro-average, at Student's tail area."""
    deviations = np.zeros(resamples)
    for group in groups:
        n = group.size
        values, counts = np.unique(d[group], return_counts=True)
        means = rng.multinomial(n, counts / n, size=resamples) @ values / n
        deviations += (means - d[group].mean()) * sqrt(n / (n - 1)) / len(groups)
    tail = ndtr(-quantile)
    low, high = np.quantile(deviations, [tail, 1 - tail])
    return float(low), float(high)


def _sign_flip_p(
    d: Floats, groups: Sequence[Ints], resamples: int, rng: np.random.Generator
) -> float:
    terms = (d * macro_weights(groups))[d != 0]
    extreme = abs(terms.sum()) - 1e-12
    if 2**terms.size <= resamples:
        patterns = (np.arange(2**terms.size)[:, None] >> np.arange(terms.size)) & 1
        return float((np.abs((2 * patterns - 1) @ terms) >= extreme).mean())
    sizes, counts = np.unique(np.abs(terms), return_counts=True)
    positive = rng.binomial(counts, 0.5, size=(resamples, sizes.size))
    hits = int((np.abs((2 * positive - counts) @ sizes) >= extreme).sum())
    if hits >= ENOUGH_HITS:
        return (hits + 1) / (resamples + 1)
    return _sign_flip_tail(sizes, counts, extreme, resamples)


def _sign_flip_tail(sizes: Floats, counts: Ints, extreme: float, resamples: int) -> float:
    r"""Chance of a sum of random signs as far from 0 as `extreme`, where that is rare.

    Signs are drawn with the bias $\theta$ whose mean sum is `extreme`, and weighted by
    $e^{-\theta S} \prod \cosh(\theta s)$, their likelihood ratio to fair signs (Siegmund, 1976).
    """
    if extreme > counts @ sizes - sizes[0]:
        return float(2.0 ** (1 - counts.sum()))  # all signs equal: one pattern on either side
    theta: Any = brentq(lambda x: counts @ (sizes * np.tanh(x * sizes)) - extreme, 0, 50 / sizes[0])
    rng = np.random.default_rng(0)
    positive = rng.binomial(counts, 1 / (1 + np.exp(-2 * theta * sizes)), (resamples, sizes.size))
    sums = (2 * positive - counts) @ sizes
    log_mean = counts @ (np.logaddexp(theta * sizes, -theta * sizes) - log(2))
    weights = np.where(sums >= extreme, np.exp(log_mean - theta * sums), 0.0)
    return float(min(2 * weights.mean(), 1.0))


def _widened(
    low: float, high: float, d: Floats, groups: Sequence[Ints], level: float
) -> tuple[float, float]:
    """Bounds that stay open where a and b hardly differ, see `paired_difference`."""
    weights, informative = macro_weights(groups), atypical_problems(d, groups)
    # Upper bound on the share of problems that differ, although none was observed to.
    unseen = 1 - ((1 - level) / 2) ** float(weights @ weights)
    half = (high - low) / 2
    target = sqrt((informative * half**2 + unseen**2) / (informative + 1))
    extra = max(target - half, 0.0)
    return low - extra, high + extra


def paired_runs(differences: RunSummary, level: float = 0.95) -> Difference:
    """Student's interval and test of the differences (ours - theirs) of runs paired by seed.

    Without any spread the bounds are the value, and p is 1 if that is 0, else 0.

    Example:
      >>> result = paired_runs(RunSummary.of([0.02, 0.01, 0.03, 0.02]))
      >>> print(f"{result.value:.2f} [{result.low:.3f}, {result.high:.3f}] p={result.p:.3f}")
      0.02 [0.007, 0.033] p=0.016
    """
    mean = differences.mean
    return _around(mean, *_student(mean, differences.variance, level))


def runs_difference(
    a: Sequence[float], b: Sequence[float], *, same_seeds: bool = False, level: float = 0.95
) -> Difference:
    """Difference a - b of one number of each run, by the rules of `paired_difference`.

    Student's of pairs, or Welch's. Two runs give no bounds, and one run of each gives no p either.

    Example:
      >>> result = runs_difference([0.52, 0.55, 0.51], [0.40, 0.47, 0.41], same_seeds=True)
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}] p={result.p:.3f}")
      0.10 [0.05, 0.15] p=0.013
    """
    value, few = float(np.mean(a) - np.mean(b)), min(len(a), len(b))
    if few == 1:
        return Difference(value, nan, nan, nan)
    variance = runs_variance(a, b, same_seeds)
    return _around(value, *_of_runs(value, variance, few, same_seeds, level))


def _of_runs(
    value: float, variance: Variance, few: int, same_seeds: bool, level: float
) -> tuple[float, float]:
    """As `_student`, of several runs each, ``few`` of the model that has fewer.

    Two runs give no interval, and p is no less than that of exchanging them.
    """
    half, p = _student(value, variance, level)
    if few == 2:
        return nan, max(p, OF_TWO_PAIRS if same_seeds else OF_TWO_AND_TWO)
    return half, p


def _student(value: float, variance: Variance, level: float) -> tuple[float, float]:
    """Half the width of Student's interval of a difference of this variance, and its p."""
    half = t_quantile(level, variance.freedom) * sqrt(variance.total)
    return half, 2 * chance_below(-abs(value), variance)


def _around(value: float, half: float, p: float) -> Difference:
    """A difference with its p, and an interval of this half width, if that is known."""
    if np.isnan(half):
        return Difference(value, nan, nan, p)
    return Difference(value, value - half, value + half, p)


def chance_below(distance: float, variance: Variance) -> float:
    """Student's distribution at a distance from the mean; a step where nothing varies."""
    if variance.total == 0:
        return float((distance > 0) + 0.5 * (distance == 0))
    return float(stdtr(variance.freedom, distance / sqrt(variance.total)))


def runs_variance(a: Sequence[float], b: Sequence[float], same_seeds: bool) -> Variance:
    """Variance of the difference of the means of two or more runs of each, and its freedom."""
    if same_seeds:
        return RunSummary.of(np.subtract(a, b)).variance
    found = _welch_variance(RunSummary.of(a), RunSummary.of(b))
    return replace(found, freedom=_unpaired_freedom(found.freedom, sorted((len(a), len(b)))))


def _welch_variance(a: RunSummary, b: RunSummary) -> Variance:
    parts = a.variance, b.variance
    total = sum(part.total for part in parts)
    squares = sum(part.total**2 / part.freedom for part in parts)
    return Variance(total, total**2 / squares if squares else float(a.runs + b.runs - 2))


def welch(a: RunSummary, b: RunSummary, level: float = 0.95) -> Difference:
    """Welch's t test of a - b, two sets of independent runs (Welch, 1947).

    In the unit of the means; bounds and p are nan if neither spreads.

    Example:
      >>> result = welch(RunSummary(23.42, 1.27, 3), RunSummary(19.75, 0.12, 3))
      >>> print(f"{result.value:.2f} p={result.p:.3f}")
      3.67 p=0.037
    """
    value, variance = a.mean - b.mean, _welch_variance(a, b)
    if variance.total == 0:
        return Difference(value, nan, nan, nan)
    return _around(value, *_student(value, variance, level))


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
