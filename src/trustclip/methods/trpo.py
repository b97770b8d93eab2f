"""TRPO's trust region as a stop: no further step once the batch has moved far enough."""

import torch
from torch import Tensor

from trustclip import divergences, gates
from trustclip.batch import Surrogate, TokenBatch
from trustclip.masked import masked_sum
from trustclip.method import Method, Positive, Reduce, definition


@definition
class TRPO(Method):
    r"""TRPO stop: every token is kept while the mean KL of the batch is small, then none is.

    .. math:: \frac1N\sum_t \mathrm{KL}_t(\pi_{old} \| \pi_\theta) \le \delta

    The trust region of TRPO, enforced the way PPO implementations do it (``target_kl``): not by
    a natural gradient with line search but by stopping the updates on this batch of samples. The
    mean is that of ``batch.kl_old_new`` where the batch has it, and of its estimate k3 otherwise.

    Args:
      delta: :math:`\delta`, nats per token.

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

    statistics_over = "micro_batch"

    delta: Positive = 0.01

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Mean KL(old || new) of the batch, nats per token."""
        kl = divergences.k3(batch.log_ratio) if batch.kl_old_new is None else batch.kl_old_new
        tokens = batch.mask.sum().to(kl.dtype)
        total, count = reduce(torch.stack([masked_sum(kl.detach(), batch.mask), tokens])).unbind()
        return {"mean_kl_old_new": total / count.clamp(min=1)}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        go_on = statistics["mean_kl_old_new"] <= self.delta
        return gates.zero(batch, go_on & batch.mask)
