"""Differences of runs paired by seed: does one exist, and is it surely too small to matter?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from trustclip.constraints.base import Method
from trustclip.constraints.registry import as_method
from trustclip.stats.confidence import RunSummary
from trustclip.stats.differences import Difference, chance_below, holm
from trustclip.stats.differences import paired_runs as paired_runs
from trustclip.stats.scores import Floats
from trustclip.support.yaml_files import parse_scalar

Conclusion = Literal["larger", "smaller", "equivalent", "inconclusive"]
#: Name, among compared methods, of a gate that never closes.
UNCONSTRAINED = "none"


def parse_method(text: str) -> Method:
    """The compared method that a text gives.

    Example:
      >>> parse_method("{name: atr, delta: 0.05}").to_dict()["delta"]
      0.05
    """
    never = {"name": "clip_higher", "low": 1.0, "high": 1e9}
    return as_method(never if text == UNCONSTRAINED else parse_scalar(text))


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
    return chance_below(abs(differences.mean) - margin, differences.variance)


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
