"""CPPO: a budget for the divergence of the prefix, and thresholds that widen along the answer."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trustclip.constraints import gates, levels
from trustclip.constraints.base import Method, Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.methods.dppo import Divergence, check, divergence_of, fields_of


@definition
class CPPO(Method, traits=Trait.CUTS | Trait.SEES_OTHERS):
    r"""CPPO: a token is dropped once it, or the prefix up to it, has diverged too far.

    $$
    v_t D_t \le \delta \ \text{and}\ \sum_{s \le t} v_s D_s \le \delta + \delta_b \sum_{s < t} v_s
    \ \text{or}\ (w_t - 1) A_t \le 0: \ w_t A_t, \qquad
    v_t = 1 - (1 - v_{min})\frac{t-1}{T-1}
    $$

    with $D_t$ the divergence of ``dppo`` at token $t$ of $T$. An early token changes the context of
    all later ones, so its threshold is $\delta$ and the last one's $\delta / v_{min}$; and once the
    weighted mean over the tokens before it exceeds $\delta_b$, a token is allowed less than
    $\delta$ by what the excess has used up. Steps towards ratio 1 are never cut. Positions count
    the unmasked tokens of a sequence.

    Another method of this name, completion pruning (2503.22342), is not this one.

    Args:
      divergence: ``"binary_tv"``, ``"binary_kl"``, ``"top_k_tv"`` (the paper's, with 20 tokens) or
        ``"top_k_kl"``; see ``dppo``.
      delta: $\delta$, threshold of the first token. 0.2 of total variation in the released code and
        in the paper for a mixture of experts; there 0.15 for dense models, 0.1 nats of KL.
      budget: $\delta_b$, mean over a prefix up to which nothing is taken from $\delta$; with a
        ceiling the least one. 0.02 in the released code and for the paper's base models, 0.015 for
        its post-trained one; 0.002 nats of KL.
      budget_ceiling: $\delta_b$ is the 90 % quantile of $D$ in the sequence, within ``budget`` and
        this: 0.04 in the released code and for base models; None for ``budget`` alone.
      least_weight: $v_{min}$, weight of the last token, in (0, 1]; 1 for one threshold throughout.
      anchor: ``"old"``, as of every method here, or ``"rollout"`` (the paper): see ``dppo``. With
        ``"rollout"`` the defaults are the released code's.
      k: number of tokens of the top-k forms, used by the engine that computes them.

    Raises:
      ValueError: ``budget_ceiling`` is below ``budget``, or a top-k form has the anchor "rollout".

    Example:
      >>> import torch, trustclip as tc
      >>> p = torch.full((1, 5), 0.5)
      >>> q = p + torch.tensor([[0.1, 0.1, 0.1, 0.1, 0.1]])
      >>> batch = tc.TokenBatch(q.log(), p.log(), torch.ones(1, 5),
      ...                       torch.ones(1, 5, dtype=torch.bool))
      >>> tc.method("cppo").surrogate(batch).kept  # none has moved by 0.2, but the prefix has
      tensor([[ True,  True, False, False, False]])

    References:
      Mao et al., `Beyond uniform token-level trust region in LLM reinforcement learning
      <https://arxiv.org/abs/2606.10968>`_, 2026, Algorithm 1;
      Tencent Hunyuan, `UniRL <https://github.com/Tencent-Hunyuan/UniRL>`_, 2026
    """

    divergence: Divergence = "binary_tv"
    delta: Positive = 0.2
    budget: Positive = 0.02
    budget_ceiling: Positive | None = 0.04
    least_weight: UpToOne = 0.8
    anchor: Anchor = "old"
    k: Annotated[int, Field(ge=1)] = 20

    def __post_init__(self) -> None:
        check(self.divergence, self.anchor)
        if self.budget_ceiling is not None and self.budget_ceiling < self.budget:
            raise ValueError(
                f"`budget_ceiling` must be at least `budget`, got {self.budget_ceiling} and "
                f"{self.budget}."
            )

    @property
    def requires(self) -> tuple[str, ...]:
        return fields_of(self.divergence, self.anchor)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        x = batch.log_ratio
        satisfied = self._within(divergence_of(self.divergence, batch), batch.mask)
        kept = gates.keeps_gradient(satisfied, x.detach(), batch.advantages, "outward")
        # The position of a token and its budget are those of its sequence: a NaN makes all NaN.
        of_sequence = levels.reduce("sequence", "sum", x.detach(), batch.mask)
        return gates.hard(batch, kept, log_ratio=x + 0 * of_sequence)

    @torch.no_grad()
    def _within(self, divergence: Tensor, mask: Tensor) -> Tensor:
        """Whether the token's threshold and the prefix's budget hold. Shape [batch, time]."""
        place = mask.cumsum(dim=1) - 1  # [batch, time], from 0
        last = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)  # [batch, 1]
        weight = (1 - (1 - self.least_weight) * place / last).to(divergence)  # [batch, time]
        weighted = weight * divergence
        spent = levels.reduce("prefix", "sum", weighted, mask)
        allowed = levels.reduce("prefix", "sum", weight, mask) - weight  # of the tokens before
        budget = self._budget(divergence, mask)
        return (weighted <= self.delta) & (spent <= self.delta + budget * allowed)

    def _budget(self, divergence: Tensor, mask: Tensor) -> Tensor | float:
        """Mean up to which a prefix is free: a number, or one for each sequence. [batch, 1]."""
        if self.budget_ceiling is None or not divergence.numel():
            return self.budget
        unmasked = divergence.masked_fill(~mask, torch.nan)
        high = unmasked.nanquantile(0.9, dim=1, keepdim=True)  # [batch, 1]
        return high.clamp(self.budget, self.budget_ceiling)
