"""CE-GPPO: tokens outside the clip keep a bounded gradient."""

import torch

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import Method, Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import choose, safe_exp


@definition
class CEGPPO(Method, traits=Trait(0)):
    r"""CE-GPPO: a token that PPO's clip would cut keeps the gradient of the bound, scaled.

    $$
    c_t = \begin{cases}
    \beta_1 (1-\epsilon_{low}) & w_t < 1-\epsilon_{low},\ A_t < 0 \\
    \beta_2 (1+\epsilon_{high}) & w_t > 1+\epsilon_{high},\ A_t > 0 \\
    w_t & \text{else}
    \end{cases}
    $$

    Most of these are rare tokens. The first kind pushes them further down, which lowers entropy;
    the second lifts them, which raises it: the two factors steer it. GPPO is the case
    $\beta_1 = \beta_2 = 1$. The released scripts add a dual clip at 10, which is not part
    of this: ``both``, with ``abc_grpo`` open on three sides, adds it.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      beta_low: $\beta_1$. 0.5 in the paper for 1.5B models, 0.75 for 7B.
      beta_high: $\beta_2$.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, 1.0, 2.0]]).log(), old, -torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> tc.coefficient(tc.method("ce_gppo"), batch)
      tensor([[-0.4000, -1.0000, -2.0000]])

    References:
      Su et al., `CE-GPPO: coordinating entropy via gradient-preserving clipping policy
      optimization <https://arxiv.org/abs/2509.20712>`_, 2025;
      Su et al., `Klear-Reasoner <https://arxiv.org/abs/2508.07629>`_, 2025, for GPPO
    """

    low: UpToOne = 0.2
    high: Positive = 0.2
    beta_low: Positive = 0.5
    beta_high: Positive = 1.0

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.log_ratio
        low, high = intervals.log_offsets(self.low, self.high)
        within = gates.keeps_gradient((low <= x) & (x <= high), x, batch.advantages, "outward")
        outside = choose(x > 0, self.beta_high, self.beta_low, x) * safe_exp(x.clamp(low, high))
        return gates.score_function(batch, torch.where(within, safe_exp(x), outside))
