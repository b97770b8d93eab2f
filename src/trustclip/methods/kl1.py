"""A constraint on k1, the plainest estimator of the KL divergence."""

import math
from typing import Literal

from torch import Tensor

from trustclip import gates, intervals
from trustclip.batch import Surrogate, TokenBatch
from trustclip.method import LogBounds, Method, Positive, definition


@definition
class KL1(Method):
    r"""KL1: the log-ratio of the token stays within a threshold.

    .. math:: |\log w_t| \le \delta, \qquad -\log w_t \le \delta \quad\text{or}\quad
              \log w_t \le \delta

    Signed, k1 is an unbiased estimate of a KL divergence but bounds the ratio on one side only;
    its absolute value bounds both and is the default. The paper does not say which it ran.

    Args:
      delta: :math:`\delta`, nats.
      sign: ``"abs"``; ``"kl_old_new"`` is -log w, the estimate of KL(old || new), a lower bound
        on the ratio; ``"kl_new_old"`` is log w, an upper bound.
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

    estimates_kl = True
    per_token = ("delta",)

    delta: Positive = 0.07
    sign: Literal["abs", "kl_old_new", "kl_new_old"] = "abs"
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        low, high = intervals.log_kl1(self.delta)
        return (
            -math.inf if self.sign == "kl_new_old" else low,
            math.inf if self.sign == "kl_old_new" else high,
        )

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.interval(batch, self.log_interval(), self.side)
