"""DGPO: tokens outside the clip keep a gradient that fades with their distance from the bound."""

import torch

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import Method, Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp


@definition
class DGPO(Method, traits=Trait(0)):
    r"""DGPO: a token that PPO's clip would cut keeps a weight, continuous at the bound, that fades.

    $$
    c_t = w_t \cdot \begin{cases}
    \big(w_t/(1-\epsilon_{low})\big)^{n} & w_t < 1-\epsilon_{low},\ A_t < 0 \\
    \big((1+\epsilon_{high})/w_t\big)^{1/m} & w_t > 1+\epsilon_{high},\ A_t > 0 \\
    1 & \text{else}
    \end{cases}
    $$

    The source reads $c_t/\pi_\theta(y_t)$, the weight of the gradient of the probability itself:
    it stays bounded as the probability vanishes (a constant weight on $\nabla\log\pi$, as in
    ``ce_gppo`` or ``cispo``, divides by it) and falls outside the bound on both sides. As a weight
    of $\nabla\log\pi_\theta$, the one on the right still grows, as $w^{1-1/m}$. The released code
    also cuts the ratio at 10 for a negative advantage, which is not part of this: ``both``, with
    ``abc_grpo`` open on three sides, adds it.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      n: how fast the weight fades below. 1 in the source; 2 for 1.5B models.
      m: how slowly it fades above. 2 in the source.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.4, 1.0, 2.0]]).log(), old, -torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> tc.coefficient(tc.method("dgpo"), batch)
      tensor([[-0.2000, -1.0000, -2.0000]])

    References:
      Fu et al., `From log pi to pi: taming divergence in soft clipping via bilateral decoupled
      decay of probability gradient weight <https://arxiv.org/abs/2603.14389>`_, 2026
    """

    low: UpToOne = 0.2
    high: Positive = 0.2
    n: Positive = 1.0
    m: Positive = 2.0

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.log_ratio
        low, high = intervals.log_offsets(self.low, self.high)
        within = gates.keeps_gradient((low <= x) & (x <= high), x, batch.advantages, "outward")
        log_fade = torch.where(x > 0, (high - x) / self.m, (x - low) * self.n)
        return gates.score_function(batch, safe_exp(torch.where(within, x, x + log_fade)))
