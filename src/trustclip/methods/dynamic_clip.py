"""DCPO's dynamic clip: bounds that widen for tokens the old policy found unlikely."""

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import AboveOne, Method, Positive, definition, need_p_old
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch


@definition
class DynamicClip(Method):
    r"""Dynamic clip: the ratio bounds depend on the old probability of the token (DCPO).

    $$
    |(w_t - 1)\, w_t|\, p_t \le \epsilon \;\Rightarrow\;
    \tfrac12 + \tfrac12\sqrt{\max(1 - 4\epsilon_{low}/p_t, 0)} \le w_t \le
    \min\big(c, \tfrac12 + \tfrac12\sqrt{1 + 4\epsilon_{high}/p_t}\big),
    \qquad p_t = \pi_{old}(y_t)
    $$

    The lower bound is 1/2 for every $p \le 4\epsilon_{low}$. The divergence allows a second
    range near ratio 0, which the method leaves out.

    Args:
      epsilon_low: threshold below ratio 1. 0.16 in the paper; its scripts run 0.2.
      epsilon_high: threshold above ratio 1. 0.20 in the paper; its scripts run 0.28.
      ceiling: $c$, largest upper bound.
      dual_ceiling: ratio past which a token of negative advantage is cut, as in ``dual_clip``;
        None leaves it out. The released code has 10, the paper does not mention it.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import torch, trustclip as tc
      >>> low, high = tc.interval("dynamic_clip", p_old=torch.tensor([0.01, 0.9]))
      >>> [round(bound, 4) for bound in (*low.tolist(), *high.tolist())]
      [0.5, 0.7687, 5.0, 1.1872]

    References:
      Yang et al., `DCPO: dynamic clipping policy optimization
      <https://arxiv.org/abs/2509.02333>`_, 2025
    """

    epsilon_low: Positive = 0.16
    epsilon_high: Positive = 0.20
    ceiling: AboveOne = 10.0
    dual_ceiling: AboveOne | None = None
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self._log_bounds(need_p_old(p_old, self.name))

    def _log_bounds(self, p_old: Tensor) -> LogBounds:
        low, high = intervals.dynamic_clip(p_old, self.epsilon_low, self.epsilon_high, self.ceiling)
        return low.log(), high.log()

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        over = gates.above_ceiling(batch, self.dual_ceiling)
        return gates.interval(batch, self._log_bounds(batch.p_old), self.side, dropped=over)
