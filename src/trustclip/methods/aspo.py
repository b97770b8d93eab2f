"""ASPO: inverted importance weights for positive advantages."""

import torch

from trustclip.constraints import gates
from trustclip.constraints.base import AboveOne, Offsets, Positive, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp


@definition
class ASPO(Offsets):
    r"""ASPO: PPO's clip, but where A > 0 the weight is the inverse of the ratio.

    $$
    c_t = \begin{cases}
    \min(1/w_t,\, c) & A_t > 0,\ w_t \le 1 + \epsilon_{high} \\
    \min(w_t,\, c) & A_t < 0,\ w_t \ge 1 - \epsilon_{low} \\
    0 & \text{else}
    \end{cases}
    $$

    With the ratio as weight, right tokens that have become likely learn fastest and those that
    have fallen behind slowest; the inverse reverses that. A weight beyond the cap keeps a capped
    gradient (the released code's soft dual clip, which we follow). Its bounds of 0.4 for the 20 %
    of tokens with the highest entropy are not part of this.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      ceiling: $c$, largest weight, above 1.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 4), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.1, 0.5, 1.0, 2.0]]).log(), old,
      ...                       torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool))
      >>> tc.coefficient(tc.method("aspo"), batch)
      tensor([[3., 2., 1., 0.]])

    References:
      Wang et al., `ASPO: asymmetric importance sampling policy optimization
      <https://arxiv.org/abs/2510.06062>`_, 2025
    """

    low: UpToOne = 0.2
    high: Positive = 0.2
    ceiling: AboveOne = 3.0

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.log_ratio
        weight = safe_exp(torch.where(batch.advantages > 0, -x, x)).clamp(max=self.ceiling)
        return gates.score_function(batch, weight, gates.interval(batch, self.log_interval()).kept)
