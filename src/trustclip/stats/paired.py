"""Two models on the same problems: the difference, its interval and its p-value."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy.special import ndtr, stdtr

from trustclip.stats.intervals import atypical_problems, mean_variance, t_quantile
from trustclip.stats.scores import (
    Correct,
    Floats,
    Ints,
    Tally,
    macro_average,
    macro_weights,
    problem_scores,
    strata_groups,
    tally,
)

RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """A difference a - b, its confidence bounds and the two-sided p-value of "no difference".

    Bounds and p are nan where the data say nothing about them.
    """

    value: float
    low: float
    high: float
    p: float


def paired_difference(
    a: Correct | Tally,
    b: Correct | Tally,
    strata: Sequence[str] | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Difference:
    """Difference of two models matched by problem.

    One seed each. Interval: stratified cluster bootstrap, problems resampled within their
    benchmark, taken at the wider percentiles that make it as long as Student's interval for
    normal data (Hesterberg, 2015). p: sign-flip permutation; under "no difference" a and b may be
    swapped on any problem. Every pattern of signs is used if there are at most `resamples`,
    so with single answers it is the exact McNemar test.

    Several seeds each. Few seeds cannot be bootstrapped (3 seeds give 10 resamples), so the
    interval and p are Student's with the crossed variance of problems and seeds
    (`mean_variance`); p is no less than the sign-flip p.

    The interval stays open when a and b hardly differ: its half width h is replaced by
    sqrt((u h^2 + g^2) / (u + 1)) if that is larger, with u the number of problems whose
    difference is not the commonest one, and g = 1 - ((1 - level)/2)^(1/n) the share of problems
    that may differ although none of n was seen to.

    Args:
      a: 0/1 by [problems, samples] or [seeds, problems, samples], or a `Tally`.
      b: the same problems in the same order; the numbers of samples and seeds may differ.
      strata: benchmark of each problem, for a macro-average.
      k: compare Pass@k instead of Mean@K.
      level: confidence, in (0, 1).
      seed: of the resampling.
      resamples: number of bootstrap resamples and of sign flips.

    Returns:
      `Difference` in [-1, 1]; bounds are nan if a benchmark has a single problem.

    Raises:
      ValueError: if the numbers of problems differ, or one of them alone has several seeds.

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
    scores_a, scores_b = paired_scores(a, b, k)
    groups = strata_groups(strata, scores_a.shape[1])
    d = np.round(scores_a.mean(axis=0) - scores_b.mean(axis=0), 12)
    value = float(macro_average(d[None], groups))
    variance, freedom = mean_variance(d, [scores_a, scores_b], groups)
    rng = np.random.default_rng(seed)
    p = _sign_flip_p(d, groups, resamples, rng)
    quantile = t_quantile(level, freedom)
    if np.isnan(quantile):
        return Difference(value, nan, nan, p)
    if scores_a.shape[0] > 1:
        low, high = -quantile * sqrt(variance), quantile * sqrt(variance)
        p = max(p, _student_p(value, variance, freedom))
    else:
        low, high = _bootstrap_bounds(d, groups, quantile, resamples, rng)
    low, high = _opened(low, high, _unseen(d, groups, level), atypical_problems(d, groups))
    return Difference(value, max(value + low, -1.0), min(value + high, 1.0), p)


def paired_scores(
    a: Correct | Tally, b: Correct | Tally, k: int | None = None
) -> tuple[Floats, Floats]:
    """Scores [seeds, problems] of two models, checked to be comparable."""
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
    return scores_a, scores_b


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
    return (hits + 1) / (resamples + 1)


def _student_p(value: float, variance: float, freedom: float) -> float:
    if variance == 0:
        return 0.0 if value else 1.0
    return float(2 * stdtr(freedom, -abs(value) / sqrt(variance)))


def _unseen(d: Floats, groups: Sequence[Ints], level: float) -> float:
    """Upper bound on the share of problems that differ, although none of them was seen to."""
    weights = macro_weights(groups)
    return 1 - ((1 - level) / 2) ** float(weights @ weights)


def _opened(low: float, high: float, unseen: float, informative: int) -> tuple[float, float]:
    half = (high - low) / 2
    wanted = sqrt((informative * half**2 + unseen**2) / (informative + 1))
    if wanted <= half:
        return low, high
    extra = wanted - half
    return low - extra, high + extra
