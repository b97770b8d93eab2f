"""A constraint on k1, the plainest estimator of the KL divergence."""

import math
from typing import Literal

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import ByToken, Interval, Positive, Trait, definition
from trustclip.constraints.batch import LogBounds


@definition
class KL1(Interval, traits=Trait.CUTS | Trait.ESTIMATES_KL):
    r"""KL1: the log-ratio of the token stays within a threshold.

    $$
    |\log w_t| \le \delta, \qquad -\log w_t \le \delta \quad\text{or}\quad
    \log w_t \le \delta
    $$

    Signed, it bounds the ratio on one side only: $-\log w$ is an unbiased estimate of
    KL(old || new), and $\log w$ minus that, although it is written as one of KL(new || old), which
    it would be under samples of the new policy. The absolute value bounds both sides and is the
    default. The paper does not state which was used.

    Args:
      delta: $\delta$, nats.
      sign: ``"abs"``; ``"kl_old_new"`` is -log w, the estimate of KL(old || new), a lower bound
        on the ratio; ``"kl_new_old"`` is log w, an upper bound on it.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 6) for bound in tc.interval("kl1", delta=0.07)]
      [0.932394, 1.072508]

    References:
      Schulman, `Approximating KL divergence <http://joschu.net/blog/kl-approx.html>`_, 2020;
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Table 3
    """

    delta: ByToken[Positive] = 0.07
    sign: Literal["abs", "kl_old_new", "kl_new_old"] = "abs"
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        low, high = intervals.log_kl1(self.delta)
        return (
            -math.inf if self.sign == "kl_new_old" else low,
            math.inf if self.sign == "kl_old_new" else high,
        )
