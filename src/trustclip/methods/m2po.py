"""M2PO: one budget for the second moment of the log-ratios of all tokens that leave."""

from torch import Tensor

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Positive, Reduce, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.selection import within_mean


@definition
class M2PO(Method, statistics_over="micro_batch"):
    r"""M2PO: the tokens furthest from ratio 1 are dropped until the others are within a budget.

    $$
    \frac{1}{|K|} \sum_{t \in K} \log^2 w_t \le \tau, \qquad J_t = w_t A_t \text{ where } t \in K
    \text{ or } t \notin S, \qquad S = \{t : (w_t - 1) A_t > 0\}
    $$

    with $S$ the tokens whose step leads away from ratio 1, the ones that PPO's clip can cut, and
    $K$ what is left of it after taking away the largest $\log^2 w$ one by one. A clip cuts whatever
    is beyond its bounds; a budget for the batch cuts nothing while the mean is small, and then the
    outliers only, so that stale samples stay usable. Dropped tokens count in the aggregation's
    denominator, as in the paper.

    *What is one batch.* A micro-batch over all ranks, at the current policy; at most 2048 sums are
    exchanged. Where gradients accumulate over several, each keeps to the budget, and so does the
    update as a whole. If the smallest of $S$ is over the budget, all of $S$ is dropped.

    *Other forms of this name.* ``side="strict"`` with ``anchor="rollout"`` takes $S$ to be all
    tokens, as AReaL does, there with the proximal policy's ratio to the sampler's. The authors'
    repository clips instead: at the $e^{\pm\theta}$ for which squares capped at $\theta^2$ have the
    mean $\tau$, never tighter than [0.7, 1.5]; that rule is not the paper's and not this one.

    Args:
      budget: $\tau$, largest mean of $\log^2 w$ over the kept tokens of $S$, nats².
      side: ``"outward"`` (the paper) takes from the tokens that move away from ratio 1,
        ``"strict"`` from all.
      anchor: ``"old"``, or ``"rollout"``: what the ratio is relative to. The paper's policy is the
        one that sampled; with ``"rollout"`` a batch without it is refused.

    Example:
      >>> import torch, trustclip as tc
      >>> x = torch.tensor([[0.1, 0.2, 0.3, -0.9, 0.0, 0.9]])
      >>> batch = tc.TokenBatch(x - 1, torch.full_like(x, -1.0), torch.ones(1, 6),
      ...                       torch.ones(1, 6, dtype=torch.bool))
      >>> tc.method("m2po").surrogate(batch).kept  # (0.01 + 0.04 + 0.09) / 3 is above 0.04
      tensor([[ True,  True, False,  True,  True, False]])

    References:
      Zheng et al., `Prosperity before collapse: how far can off-policy RL reach with stale data on
      LLMs? <https://arxiv.org/abs/2510.01161>`_, 2025, Algorithm 1
    """

    budget: Positive = 0.04
    side: gates.Side = "outward"
    anchor: Anchor = "old"

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        r"""Smallest $\log^2 w$ that is dropped, over all ranks; infinite where none is."""
        batch = batch.against(self.anchor)
        droppable = self._droppable(batch) & batch.finite
        return {"bound": within_mean(batch.log_ratio[droppable] ** 2, self.budget, reduce)}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        batch = batch.against(self.anchor)
        # In float32, as the bound was found: a token on it must not be kept by a rounding.
        beyond = (batch.log_ratio.detach() ** 2).float() >= statistics["bound"]
        return gates.hard(batch, ~(beyond & self._droppable(batch)))

    def _droppable(self, batch: TokenBatch) -> Tensor:
        """Tokens that can be dropped. Shape [batch, time]."""
        if self.side == "strict":
            return batch.mask
        return gates.moves_outward(batch.log_ratio.detach(), batch.advantages)
