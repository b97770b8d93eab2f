"""TRPO's trust region as a stopping rule: no further step once the batch has moved too far."""

import torch
from torch import Tensor

from trustclip.constraints import divergences, gates
from trustclip.constraints.base import Method, Positive, Reduce, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import masked_sum


@definition
class TRPO(Method, statistics_over="micro_batch"):
    r"""TRPO stop: every token is kept while the mean KL of the batch is small, then none is.

    $$
    \frac1N\sum_t \mathrm{KL}_t(\pi_{old} \| \pi_\theta) \le \delta
    $$

    The trust region of TRPO, enforced the way PPO implementations do it (``target_kl``): not by
    a natural gradient with line search but by stopping the updates on this batch of samples. The
    mean is that of ``batch.kl_old_new`` where the batch has it, and of its estimate k3 otherwise,
    over the finite tokens of all ranks in one micro-batch: where gradients accumulate over several,
    one part of an update can stop and another go on.

    Args:
      delta: $\delta$, nats per token.

    Example:
      >>> import torch, trustclip as tc
      >>> logp = torch.tensor([[-1.0, -1.0]])
      >>> batch = tc.TokenBatch(logp, logp - 0.2, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.method("trpo", delta=0.01).surrogate(batch).kept
      tensor([[False, False]])

    References:
      Schulman et al., `Trust region policy optimization <https://arxiv.org/abs/1502.05477>`_, 2015
    """

    delta: Positive = 0.01

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Mean KL(old || new) of the micro-batch over all ranks, nats per token."""
        kl = divergences.k3(batch.log_ratio) if batch.kl_old_new is None else batch.kl_old_new
        finite = batch.finite
        sums = torch.stack([masked_sum(kl.detach(), finite), finite.sum().to(kl.dtype)])
        total, count = reduce(sums).unbind()
        return {"mean_kl_old_new": total / count.clamp(min=1)}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        go_on = statistics["mean_kl_old_new"] <= self.delta
        return gates.hard(batch, go_on & batch.mask)
