"""A constraint on the exact KL divergence."""

from typing import Literal

from trustclip.constraints import gates
from trustclip.constraints.base import ByToken, Method, Positive, definition
from trustclip.constraints.batch import Surrogate, TokenBatch


@definition
class FullKL(Method):
    r"""Full KL: the exact KL divergence at the token's position stays within a threshold.

    $$
    \mathrm{KL}_t = \sum_{v} \pi_{old}(v)\log\frac{\pi_{old}(v)}{\pi_\theta(v)} \le \delta
    \qquad\text{or}\qquad
    \sum_{v} \pi_\theta(v)\log\frac{\pi_\theta(v)}{\pi_{old}(v)} \le \delta
    $$

    over the whole vocabulary. Where it exceeds the threshold, a token whose gradient would move
    its own ratio further from 1 is cut: the KL-based clip of Wang et al. and TR-PPO's gate, which
    the paper runs as "full KL-guided clipping". Unlike a function of the sampled ratio it can
    close at ratio 1, when the rest of the distribution has moved.

    Args:
      delta: $\delta$, nats.
      order: ``"old_new"`` is KL(old || new), the order of TRPO, of the released code of Wang et
        al., and what k3 estimates; ``"new_old"`` is KL(new || old), as the paper's Eq. 4 writes.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import torch, trustclip as tc
      >>> logp = torch.tensor([[-1.0, -1.0]])
      >>> batch = tc.TokenBatch(logp, logp - 0.1, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool),
      ...                       kl_old_new=torch.tensor([[0.01, 0.2]]))
      >>> tc.method("full_kl").surrogate(batch).kept
      tensor([[ True, False]])

    References:
      Wang et al., `Truly proximal policy optimization <https://arxiv.org/abs/1903.07940>`_, 2020;
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Eq. 4 and Table 3
    """

    delta: ByToken[Positive] = 0.07
    order: Literal["old_new", "new_old"] = "old_new"
    side: gates.Side = "outward"

    @property
    def requires(self) -> tuple[str, ...]:
        return (f"kl_{self.order}",)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        kl = batch.given(f"kl_{self.order}")
        kept = gates.keeps_gradient(kl <= self.delta, batch.log_ratio, batch.advantages, self.side)
        return gates.hard(batch, kept)
