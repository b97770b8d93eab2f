"""VACO: no token moves further away in a sequence whose mean total variation is at its limit."""

import torch
from torch import Tensor

from trustclip.constraints import gates, levels
from trustclip.constraints.base import (
    Method,
    Positive,
    Trait,
    anchor_fields,
    anchor_traits,
    definition,
)
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.masked import safe_expm1


@definition
class VACO(Method):
    r"""VACO: where a sequence has used up its total variation, only tokens that return move.

    $$
    c_t = w_t \,\mathbf 1\Big[\tfrac12\,\tfrac1T\sum_s |w_s - 1| \le \delta
    \ \text{ or }\ A_t\,(w_t - 1) \le 0\Big]
    $$

    with $w_t$ the ratio to the anchor. The sum estimates the total variation between the policy
    and the anchor from the tokens that the anchor sampled. A token is cut only if its gradient
    would add to it: a sequence outside is pulled back, where ``trm`` drops it. The paper takes the
    mean over a whole batch, and V-trace for advantages; Open Instruct the one over a sequence, as
    here, and later over the completions of a prompt (``tvpo``, weights up to 20).

    Args:
      delta: $\delta$, from 0 to 1. 0.02 in Open Instruct.
      anchor: ``"rollout"`` (the sources: the policy that sampled) or ``"old"``.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 4), -1.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[1.2, 1.0, 0.8, 1.0]]).log(), old,
      ...                       torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool))
      >>> tc.coefficient(tc.method("vaco", anchor="old"), batch)  # half of (0.2 + 0.2) / 4 = 0.05
      tensor([[0.0000, 1.0000, 0.8000, 1.0000]])

    References:
      `VACO <https://arxiv.org/abs/2603.01365>`_, 2026; Open Instruct,
      `TV divergence rho filtering <https://github.com/allenai/open-instruct/pull/1681>`_, 2026
    """

    delta: Positive = 0.02
    anchor: Anchor = "rollout"

    @property
    def requires(self) -> tuple[str, ...]:
        return anchor_fields(self.anchor)

    @property
    def traits(self) -> Trait:
        return Trait.CUTS | Trait.SEES_OTHERS | anchor_traits(self.anchor)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        x = batch.log_ratio.detach()
        satisfied = self.total_variation(x, batch.mask) <= self.delta
        return gates.hard(batch, gates.keeps_gradient(satisfied, x, batch.advantages, "outward"))

    @torch.no_grad()
    def total_variation(self, log_ratio: Tensor, mask: Tensor) -> Tensor:
        """Estimated total variation of each token's sequence. Shape [batch, time]."""
        return levels.reduce("sequence", "mean", 0.5 * safe_expm1(log_ratio).abs(), mask)
