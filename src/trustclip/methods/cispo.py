"""CISPO: the importance weight is clipped; no token is cut."""

import math

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import Method, Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp
from trustclip.constraints.twins import Twins, verl_bounds, verl_settings


@definition
class CISPO(Method, traits=Trait(0)):
    r"""CISPO: the ratio is clipped as a weight, so that every token keeps a gradient.

    $$
    \frac{\partial J}{\partial\log\pi_\theta(y_t)} = c_t A_t, \qquad
    c_t = \mathrm{clip}(w_t,\, 1-\epsilon_{low},\, 1+\epsilon_{high}) \text{, a constant}
    $$

    PPO's clip drops rare tokens, which move most, from the first update on; here they stay with
    a bounded weight. The paper leaves the lower side open and tunes $\epsilon_{high}$.
    ScaleRL and TRL cap the weight at 5, which is the default here; note that TRL's
    ``epsilon_high`` is the cap itself ($1+\epsilon_{high}$ here), and verl clips both sides.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1; 1 leaves that side open.
      high: $\epsilon_{high}$, offset above ratio 1.

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

    low: UpToOne = 1.0
    high: Positive = 4.0

    @property
    def twins(self) -> Twins:
        # TRL has no lower bound, and its ``epsilon_high`` is the cap of the weight itself.
        trl = {"TRL": {"loss_type": "cispo", "epsilon_high": 1 + self.high}}
        verl = {"verl": verl_settings("cispo", **verl_bounds(self.low, self.high))}
        return verl if self.low < 1 else trl | verl

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        low, high = map(math.exp, intervals.log_offsets(self.low, self.high))
        return gates.score_function(batch, safe_exp(batch.log_ratio).clamp(low, high))
