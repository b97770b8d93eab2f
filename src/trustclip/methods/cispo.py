"""CISPO: the importance weight is clipped, and no token is."""

import math
from typing import Any

from trustclip import gates, intervals
from trustclip.batch import Surrogate, TokenBatch
from trustclip.masked import safe_exp
from trustclip.method import Method, Positive, UpToOne, definition


@definition
class CISPO(Method):
    r"""CISPO: the ratio is clipped as a weight, so that every token keeps a gradient.

    .. math::
        \frac{\partial J}{\partial\log\pi_\theta(y_t)} = c_t A_t, \qquad
        c_t = \mathrm{clip}(w_t,\, 1-\epsilon_{low},\, 1+\epsilon_{high}) \text{, a constant}

    PPO's clip drops rare tokens, which move most, from the first update on; here they stay with
    a bounded weight. The paper leaves the lower side open and tunes :math:`\epsilon_{high}`.
    ScaleRL and TRL cap the weight at 5, which is the default here; note that TRL's
    ``epsilon_high`` is the cap itself (:math:`1+\epsilon_{high}` here), and verl clips both sides.

    Args:
      low: :math:`\epsilon_{low}`, offset below ratio 1; 1 leaves that side open.
      high: :math:`\epsilon_{high}`, offset above ratio 1.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.1, 2.0, 9.0]]).log(), old, torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> tc.coefficient(tc.method("cispo"), batch)
      tensor([[0.1000, 2.0000, 5.0000]])

    References:
      MiniMax, `MiniMax-M1: scaling test-time compute efficiently with lightning attention
      <https://arxiv.org/abs/2506.13585>`_, 2025
    """

    cuts = False
    score_form = True

    low: UpToOne = 1.0
    high: Positive = 4.0

    @property
    def twins(self) -> dict[str, dict[str, Any]]:
        bounds = {"actor.clip_ratio_low": self.low, "actor.clip_ratio_high": self.high}
        verl = {"actor.policy_loss.loss_mode": "cispo", **bounds}
        if self.low < 1:
            return {"verl": verl}
        return {"TRL": {"loss_type": "cispo", "epsilon_high": 1 + self.high}, "verl": verl}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        low, high = map(math.exp, intervals.log_offsets(self.low, self.high))
        return gates.score(batch, safe_exp(batch.log_ratio).clamp(low, high))
