"""Confidence intervals: Mean@K and Pass@k by problem and training seed, and means over runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy.special import betaincinv, stdtrit

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

# Few seeds underestimate their variance more often than not, and Satterthwaite's formula then
# overrates its freedom: with three seeds, 95 % intervals of one model cover 92.4 to 95.1 %.
# Counting the seeds' part three times there gives 94.7 to 96.1 %.
SEED_CAUTION = 3.0
# Wilson's interval is exact enough from this many of the rarer outcome on. Below, it covers as
# little as 85 %, and the exact (Clopper-Pearson) one is used.
RARE = 5.0


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence bounds, all in the unit of the score.

    Bounds are nan where the data do not determine their width.
    """

    value: float
    low: float = nan
    high: float = nan


@dataclass(frozen=True)
class Variance:
    """Variance of a macro-average over crossed random problems and seeds (`mean_variance`).

    Args:
      total: the variance; nan if a benchmark has a single problem.
      freedom: its degrees of freedom.
      seeds: V_seed, the part that is constant over problems, with its share of V_cross.
      cross: V_cross, the seed-by-problem residual.
    """

    total: float
    freedom: float
    seeds: float = 0.0
    cross: float = 0.0


def mean_interval(
    correct: Correct | Tally, strata: Strata | None = None, level: float = 0.95
) -> Interval:
    r"""Interval of Mean@K, with the design effect of problems and seeds.

    The $n$ problems are a sample of those one could have asked, and the seeds a sample of training
    runs. With $v$ the variance of the score $p$ under that sampling (`mean_variance`), the
    effective number of independent answers is $m = p(1-p)/v$, and the bounds are Wilson's: they
    solve $|p - q| = t\sqrt{q(1-q)/m}$ for $q$, with $t$ Student's quantile at $v$'s degrees of
    freedom. Where fewer than 5 effective answers are right, or wrong, the bounds are Clopper and
    Pearson's, with $m (t_1/t)^2$ answers, $t_1$ the quantile without seeds (Korn and Graubard,
    1998).

    So few right answers that $v$ is hardly known (all of them wrong, say) must not make a narrow
    interval: the problems' part of $v$ is shrunk towards $p(1-p)/n$, its value if all answers to a
    problem agreed, with weight 1 to the $u$ problems whose score is not the commonest one; and no
    upper bound is below that of no right answer, no lower bound above that of no wrong one.

    The seeds are taken to vary like a bell curve. Where single runs collapse, intervals from 3 or
    5 of them cover far less than `level`: a collapse that no run showed is in no interval.

    Args:
      correct: 0/1 by [problems, samples] or [seeds, problems, samples], or a `Tally`. One seed:
        the interval leaves out how much training runs differ.
      strata: benchmark of each problem, for a macro-average; or (benchmark, family) where problems
        come in families, which are then the independent units.
      level: confidence, in (0, 1).

    Returns:
      `Interval` within [0, 1]; its bounds are nan if a benchmark has a single problem.

    Raises:
      ValueError: if the input has the wrong shape or values.

    Example:
      >>> result = mean_interval([[1, 0, 0, 0]] * 10 + [[0, 0, 0, 0]] * 20)
      >>> print(f"{result.value:.3f} [{result.low:.3f}, {result.high:.3f}]")
      0.083 [0.044, 0.152]
      >>> print(f"{mean_interval([[0] * 8] * 30).high:.3f}")
      0.116

    References:
      Korn and Graubard, "Confidence Intervals for Proportions with Small Expected Number of
      Positive Counts Estimated from Survey Data", Survey Methodology 24 (1998).
      Miller, "Adding Error Bars to Evals", arXiv 2411.00640.
    """
    return _score_interval(problem_scores(tally(correct)), strata, level)


def pass_interval(
    correct: Correct | Tally, k: int, strata: Strata | None = None, level: float = 0.95
) -> Interval:
    """Interval of the unbiased Pass@k, built like that of `mean_interval`, from the same data.

    Pass@k is the probability that one of k sampled answers is right. With n samples of a problem, c
    of them right, its estimate is 1 - C(n-c, k) / C(n, k) = 1 - prod_{j<k} (n-c-j) / (n-j).

    Raises:
      ValueError: if `k` is not in 1 to the smallest number of samples of a problem.

    Example:
      >>> result = pass_interval([[1, 0, 0, 0]] * 10 + [[0, 0, 0, 0]] * 20, k=4)
      >>> print(f"{result.value:.3f} [{result.low:.3f}, {result.high:.3f}]")
      0.333 [0.186, 0.523]

    References:
      Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374.
    """
    return _score_interval(problem_scores(tally(correct), k), strata, level)


def rate_interval(hits: int, runs: int, level: float = 0.95) -> Interval:
    """Clopper and Pearson's exact interval of a rate: `hits` of `runs` independent runs.

    It covers at least as often as `level` says.

    Raises:
      ValueError: if there is no run, or `hits` is not in [0, runs].

    Example:
      >>> result = rate_interval(1, 3)
      >>> print(f"{result.value:.2f} [{result.low:.3f}, {result.high:.3f}]")
      0.33 [0.008, 0.906]
    """
    if runs < 1 or not 0 <= hits <= runs:
        raise ValueError(f"a rate needs 0 <= hits <= runs and runs >= 1; got {hits} of {runs}")
    return Interval(hits / runs, *_exact_bounds(hits, runs - hits, level))


def _exact_bounds(right: float, wrong: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's bounds of the share of right ones."""
    tail = (1 - level) / 2
    low = float(betaincinv(right, wrong + 1, tail)) if right else 0.0
    return low, float(betaincinv(right + 1, wrong, 1 - tail)) if wrong else 1.0


def _score_interval(scores: Floats, strata: Strata | None, level: float) -> Interval:
    scores, tasks = by_family(scores, strata)
    groups = strata_groups(tasks, scores.shape[1])
    per_problem = scores.mean(axis=0)
    value = float(macro_average(scores, groups))
    variance = mean_variance(per_problem, [scores], groups)
    of_problems = mean_variance(per_problem, [], groups)
    scale = float((macro_weights(groups) ** 2).sum())
    worst = value * (1 - value) * scale
    shrunk = (worst - of_problems.total) / (atypical_problems(per_problem, groups) + 1)
    size = value * (1 - value) / (variance.total + shrunk) if worst else 1 / scale
    of_one_seed = scores.shape[1] - len(groups)
    low, high = _proportion_bounds(value, size, (variance.freedom, of_one_seed), level)
    # The bound of no right answer, and by symmetry that of no wrong one: more right answers must
    # not lower an upper bound.
    _, none_right = _proportion_bounds(0.0, 1 / scale, (of_one_seed, of_one_seed), level)
    return Interval(
        value, float(np.minimum(low, 1 - none_right)), float(np.maximum(high, none_right))
    )


def _proportion_bounds(
    share: float, size: float, freedom: tuple[float, float], level: float
) -> tuple[float, float]:
    """Bounds of a share of `size` effective answers: Wilson's, or exact where one is rare.

    `freedom` of the variance behind `size`, and what it would be with a single seed.
    """
    t, of_one_seed = (t_quantile(level, df) for df in freedom)
    if np.isnan(t + size):
        return nan, nan
    if size * min(share, 1 - share) < RARE:
        size *= (of_one_seed / t) ** 2
        return _exact_bounds(size * share, size * (1 - share), level)
    return wilson(share, size, t)


def wilson(share: float, size: float, quantile: float) -> tuple[float, float]:
    r"""Wilson's bounds of a share (Wilson, 1927): the $q$ of $|p - q| = z\sqrt{q(1-q)/n}$.

    Args:
      share: $p$, in [0, 1].
      size: $n$, answers or runs it is a share of, > 0.
      quantile: $z$, two-sided, of the normal distribution or of Student's.

    Example:
      >>> tuple(round(bound, 4) for bound in wilson(0.3, 10, 1.959964))
      (0.1078, 0.6032)
    """
    squared = quantile**2 / size
    middle = (share + squared / 2) / (1 + squared)
    half = quantile * sqrt(share * (1 - share) / size + squared / (4 * size)) / (1 + squared)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def t_quantile(level: float, freedom: float) -> float:
    """Two-sided Student quantile; nan where the degrees of freedom are."""
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), e.g. 0.95; got {level}")
    return float(stdtrit(freedom, (1 + level) / 2))


def atypical_problems(per_problem: Floats, groups: Sequence[Ints]) -> int:
    """Number of problems that differ from the most common score of their stratum."""
    rounded = np.round(per_problem, 9)
    return sum(
        group.size - int(np.unique(rounded[group], return_counts=True)[1].max()) for group in groups
    )


def mean_variance(
    per_problem: Floats,
    arms: Sequence[Floats],
    groups: Sequence[Ints],
    caution: float = SEED_CAUTION,
) -> Variance:
    """Variance of a macro-average over crossed random problems and seeds, and its freedom.

    With $y_{si} = m + a_s + b_i + c_{si}$ (seed $s$ of $S$, problem $i$ of $n$; $c$ holds the
    sampling noise):
    $V_{problem} = s^2$(mean over seeds)$/n$ estimates $var(b)/n + var(c)/(nS)$,
    $V_{seed} = s^2$(mean over problems)$/S$ estimates $var(a)/S + var(c)/(nS)$,
    $V_{cross} = s^2$(residual)$/(nS)$ estimates $var(c)/(nS)$, so that
    $v = V_{problem} + V_{seed} - V_{cross}$, and never less than $V_{problem}$ or $V_{seed}$.
    Degrees of freedom by Satterthwaite's formula, with $V_{seed}$ counted `caution` times.

    Args:
      per_problem: the score, or the difference of two, of each problem, float [problems].
      arms: what varies by seed, each [seeds, problems]: the scores of each model in it or, where
        two models share their seeds, the differences; an arm of one seed has no V_seed.
      groups: indices of each stratum's problems.
      caution: weight of the seeds in the degrees of freedom.
    """
    if min(group.size for group in groups) < 2:
        return Variance(nan, nan)
    problem = [
        (float(per_problem[group].var(ddof=1)) / (group.size * len(groups) ** 2), group.size - 1)
        for group in groups
    ]
    crossed = [arm for arm in arms if arm.shape[0] > 1]
    weights = macro_weights(groups)
    seed = [
        (float((arm @ weights).var(ddof=1)) / arm.shape[0], arm.shape[0] - 1) for arm in crossed
    ]
    of_problems, of_seeds = (sum(v for v, _ in parts) for parts in (problem, seed))
    of_cross = sum(_residual_variance(arm, groups) for arm in crossed)
    total = max(of_problems + of_seeds - of_cross, of_problems, of_seeds)
    parts = problem + [(caution * v, freedom) for v, freedom in seed]
    squares = sum(v**2 / freedom for v, freedom in parts)
    freedom = sum(v for v, _ in parts) ** 2 / squares if squares else per_problem.size - len(groups)
    return Variance(total, freedom, of_seeds, of_cross)


def _residual_variance(arm: Floats, groups: Sequence[Ints]) -> float:
    """V_cross of [seeds, problems]: the seed-by-problem residual, summed over strata."""
    total = 0.0
    for group in groups:
        block = arm[:, group]
        fit = block.mean(axis=0) + block.mean(axis=1, keepdims=True) - block.mean()
        mean_square = ((block - fit) ** 2).sum() / (block.shape[0] - 1) / (block.shape[1] - 1)
        total += float(mean_square) / (block.size * len(groups) ** 2)
    return total


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
        """Summary from a std with divisor `runs`, numpy's default."""
        return cls(mean, std * sqrt(runs / (runs - 1)), runs)

    @property
    def variance(self) -> Variance:
        """Variance of the mean over runs."""
        return Variance(self.std**2 / self.runs, self.runs - 1)

    def interval(self, level: float = 0.95) -> Interval:
        """Student's interval of the mean over runs."""
        half = t_quantile(level, self.runs - 1) * self.std / sqrt(self.runs)
        return Interval(self.mean, self.mean - half, self.mean + half)
