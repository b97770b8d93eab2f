"""Differences of runs paired by seed: does one exist, and is it surely too small to matter?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import nan, sqrt
from typing import Literal

import numpy as np
from scipy.special import chdtrc, stdtr

from trustclip.stats.confidence import RunSummary, t_quantile
from trustclip.stats.differences import Difference, chance_below, holm
from trustclip.stats.differences import paired_runs as paired_runs
from trustclip.stats.scores import Floats

Conclusion = Literal["larger", "smaller", "equivalent", "inconclusive"]


def adjusted_runs(values: Floats, covariate: Floats, level: float = 0.95) -> Difference:
    r"""What a difference would be in runs that are equal in something else.

    The intercept $a$ of the least-squares line $y_i = a + b x_i$ through the differences of each
    seed, with Student's interval and test of $n - 2$ degrees of freedom: entropies at equal score,
    say. Far from $x = 0$ it is an extrapolation, and its interval widens.

    Args:
      values: differences (ours - theirs) of each seed, three or more.
      covariate: differences of what is held equal, of the same seeds.
      level: confidence, in (0, 1).

    Returns:
      `Difference`; nan bounds and p where `covariate` does not vary.

    Example:
      >>> import numpy as np
      >>> x = np.array([0.0, 0.1, 0.2, 0.3])
      >>> result = adjusted_runs(0.5 + 2 * x + np.array([0.01, -0.01, -0.01, 0.01]), x)
      >>> print(f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]")
      0.50 [0.45, 0.55]
    """
    x, y = covariate - covariate.mean(), values - values.mean()
    squares, freedom = float(x @ x), len(values) - 2
    if squares == 0 or freedom < 1:
        return Difference(float(values.mean()), nan, nan, nan)
    slope = float(x @ y) / squares
    intercept = float(values.mean() - slope * covariate.mean())
    variance = float(((y - slope * x) ** 2).sum()) / freedom
    error = sqrt(variance * (1 / len(values) + float(covariate.mean()) ** 2 / squares))
    half = t_quantile(level, freedom) * error
    p = 2 * float(stdtr(freedom, -abs(intercept) / error)) if error else float(intercept == 0)
    return Difference(intercept, intercept - half, intercept + half, p)


def equivalence_p(differences: RunSummary, margin: float) -> float:
    r"""p-value of "the true difference is `margin` or more, in one direction or the other".

    Two one-sided tests (Schuirmann, 1987): with mean $d$, standard error $s$ and Student's
    distribution $F$ of $n - 1$ degrees of freedom, $F(-(m - |d|)/s)$. At p <= 0.05 the 90 %
    interval lies within $(-m, m)$.

    Args:
      differences: mean and spread of (ours - theirs) over seeds.
      margin: the smallest difference that would matter, > 0, in their unit.

    Raises:
      ValueError: if the margin is not above 0.

    Example:
      >>> print(f"{equivalence_p(RunSummary.of([0.002, -0.001, 0.003, 0.0]), 0.01):.4f}")
      0.0011
    """
    if not margin > 0:
        raise ValueError(f"the margin must be above 0, e.g. 0.01 for one point; got {margin}")
    return chance_below(abs(differences.mean) - margin, differences)


def sign_flip_p(differences: Floats) -> float:
    r"""Exact p-value of "no difference", two-sided: each difference may have had either sign.

    The share of the $2^n$ patterns of signs whose sum is as far from 0. It needs no normal
    distribution, and is never below $2^{1-n}$.

    Args:
      differences: ours - theirs of each seed, [n]; at most some 16, since every pattern is made.

    Example:
      >>> import numpy as np
      >>> sign_flip_p(np.array([0.02, 0.01, 0.03, 0.02, 0.01, 0.04]))
      0.03125
    """
    signs = np.array(list(product((-1, 1), repeat=len(differences))))
    extreme = abs(float(differences.sum())) - 1e-12
    return float((np.abs(signs @ differences) >= extreme).mean())


@dataclass(frozen=True)
class Heterogeneity:
    """Whether one difference, measured in several places, is one number.

    Args:
      q: Cochran's Q.
      freedom: its degrees of freedom, one less than there are places.
      p: of "the same difference everywhere".
    """

    q: float
    freedom: int
    p: float


def heterogeneity(differences: Sequence[RunSummary]) -> Heterogeneity:
    r"""Cochran's test of differences $d_i$ with standard errors $s_i$ (Cochran, 1954).

    $Q = \sum_i (d_i - \bar d)^2 / s_i^2$ with $\bar d$ their mean weighted by $1/s_i^2$, against
    $\chi^2$ of one degree less than there are differences. They are taken as independent.

    Args:
      differences: mean and spread over seeds in each place, all with some spread.

    Returns:
      `Heterogeneity`; nan where a difference does not spread or there is only one.

    Example:
      >>> result = heterogeneity([RunSummary(0.05, 0.1, 100), RunSummary(-0.01, 0.1, 100)])
      >>> print(f"{result.q:.1f} {result.freedom} {result.p:.1e}")
      18.0 1 2.2e-05
    """
    means = np.array([d.mean for d in differences])
    errors = np.array([d.std / sqrt(d.runs) for d in differences])
    if len(means) < 2 or (errors == 0).any():
        return Heterogeneity(nan, len(means) - 1, nan)
    weights = errors**-2
    q = float(weights @ (means - weights @ means / weights.sum()) ** 2)
    return Heterogeneity(q, len(means) - 1, float(chdtrc(len(means) - 1, q)))


@dataclass(frozen=True)
class Contrast:
    """One of several comparisons that were fixed beforehand.

    Args:
      difference: with its own interval and p.
      p_holm: of "no difference", corrected over the contrasts.
      p_equivalent: of "a difference of the margin or more", corrected over the contrasts.
      conclusion: in words, see `conclude`.
    """

    difference: Difference
    p_holm: float
    p_equivalent: float
    conclusion: Conclusion


def contrasts(
    differences: Sequence[RunSummary], margin: float, level: float = 0.95
) -> list[Contrast]:
    """Test a family of differences both ways, each way with Holm's correction.

    Args:
      differences: of each contrast, over seeds.
      margin: the smallest difference that would matter.
      level: confidence, in (0, 1), of each interval and of each family of tests.

    Example:
      >>> both = [RunSummary(0.05, 0.02, 64), RunSummary(0.001, 0.01, 64)]
      >>> [contrast.conclusion for contrast in contrasts(both, margin=0.01)]
      ['larger', 'equivalent']
    """
    tests = [paired_runs(d, level) for d in differences]
    p_holm = holm([test.p for test in tests]).tolist()
    p_equivalent = holm([equivalence_p(d, margin) for d in differences]).tolist()
    return [
        Contrast(test, p, q, conclude(test.value, p, q, level))
        for test, p, q in zip(tests, p_holm, p_equivalent, strict=True)
    ]


def conclude(value: float, p: float, p_equivalent: float, level: float = 0.95) -> Conclusion:
    """What two tests of a difference say together.

    Equivalence goes first: a difference that is surely not 0 and surely below the margin is one
    that does not matter.

    Args:
      value: of the difference.
      p: of "no difference".
      p_equivalent: of "a difference of the margin or more".
      level: confidence, in (0, 1).

    Example:
      >>> conclude(-0.03, 0.001, 0.9), conclude(0.002, 0.01, 0.01), conclude(0.01, 0.2, 0.4)
      ('smaller', 'equivalent', 'inconclusive')
    """
    alpha = 1 - level + 1e-12
    if p_equivalent <= alpha:
        return "equivalent"
    if p <= alpha:
        return "larger" if value > 0 else "smaller"
    return "inconclusive"
