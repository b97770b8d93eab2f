"""TOPR: importance weights for wrong answers only, and never above 1."""

from typing import Literal

import torch

from trustclip.constraints import gates, levels
from trustclip.constraints.base import Method, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp


@definition
class TOPR(Method, traits=Trait(0)):
    r"""TOPR: a right answer weighs 1, a wrong one its ratio as a whole answer, but at most 1.

    $$
    c_t = \begin{cases} 1 & A_t \ge 0 \\ \min(W, 1) & A_t < 0 \end{cases},
    \qquad W = \prod_s w_s
    $$

    with $W$ the ratio of the whole sequence. Off-policy, a wrong answer is pushed down no
    further once it has become unlikely, which keeps the objective bounded, and a right one keeps
    its full gradient however far it has moved: there is no trust region. The paper splits by the
    sign of the reward; so does this with a baseline of 0, and else by that of the advantage.

    Args:
      level: ``"sequence"`` (the paper), or ``"token"``: each token's own ratio, as in ROLL.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, 1.5]]).log(), old, -torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("topr"), batch)
      tensor([[-0.7500, -0.7500]])

    References:
      Le Roux et al., `Tapered off-policy REINFORCE <https://arxiv.org/abs/2503.14286>`_, 2025
    """

    level: Literal["token", "sequence"] = "sequence"

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = levels.reduce(self.level, "sum", batch.log_ratio, batch.mask)
        tapered = safe_exp(x.clamp(max=0))
        return gates.score_function(batch, torch.where(batch.advantages < 0, tapered, 1.0))
