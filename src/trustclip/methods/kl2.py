"""A constraint on k2, the squared log-ratio."""

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import ByToken, Interval, Positive, Trait, definition
from trustclip.constraints.batch import LogBounds


@definition
class KL2(Interval, traits=Trait.CUTS | Trait.ESTIMATES_KL):
    r"""KL2: half the squared log-ratio of the token stays within a threshold.

    $$
    \tfrac12 \log^2 w_t \le \delta \iff e^{-\sqrt{2\delta}} \le w_t \le e^{\sqrt{2\delta}}
    $$

    Args:
      delta: $\delta$, nats.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 6) for bound in tc.interval("kl2", delta=0.07)]
      [0.687863, 1.453778]

    References:
      Schulman, `Approximating KL divergence <http://joschu.net/blog/kl-approx.html>`_, 2020;
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Table 3
    """

    delta: ByToken[Positive] = 0.07
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return intervals.log_kl2(self.delta)
