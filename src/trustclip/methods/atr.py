"""ATR: the approximate trust region, a constraint on k3."""

from torch import Tensor

from trustclip import gates, intervals
from trustclip.batch import Surrogate, TokenBatch
from trustclip.levels import Level
from trustclip.method import LogBounds, Method, Positive, definition


@definition
class ATR(Method):
    r"""ATR: a token is kept while its k3 estimate of the KL divergence is small (ATR-GRPO).

    .. math:: k_3(w_t) = w_t - 1 - \log w_t \le \delta, \qquad w_t = \pi_\theta(y_t)/\pi_{old}(y_t)

    Under samples of the old policy :math:`k_3` estimates KL(old || new) without bias. The
    constraint is the ratio interval :math:`[l_\delta, u_\delta]`, roots of :math:`k_3 = \delta`,
    with :math:`1 - l_\delta < u_\delta - 1` (Theorem 4.2): the ratio may rise further than fall.
    The same gradient as ``clip_higher`` with those bounds.

    Args:
      delta: :math:`\delta`, nats. 0.07 in the paper.
      side: ``"outward"`` cuts only steps away from ratio 1 (the paper's main text), ``"strict"``
        every unsatisfied token (its appendix).
      level: ``"token"`` (the paper), ``"prefix"`` or ``"sequence"``: where the ratio is measured.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 6) for bound in tc.interval("atr", delta=0.07)]
      [0.670972, 1.422217]

    References:
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Eq. 5-6
    """

    delta: Positive = 0.07
    side: gates.Side = "outward"
    level: Level = "token"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return intervals.log_k3(self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.interval(batch, self.log_interval(), self.side, self.level)
