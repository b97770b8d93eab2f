"""VACO: no token moves further away in a sequence whose mean total variation is at its limit."""

from trustclip.constraints import divergences, gates, levels
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch


@definition
class VACO(Method, traits=Trait.CUTS | Trait.SEES_OTHERS):
    r"""VACO: once a sequence's mean total variation is too large, only steps back to ratio 1 train.

    $$
    c_t = w_t \,\mathbf 1\Big[\tfrac12\,\tfrac1T\sum_s |w_s - 1| \le \delta
    \ \text{ or }\ A_t\,(w_t - 1) \le 0\Big]
    $$

    with $w_t$ the ratio to the anchor. The sum estimates the total variation between the policy
    and the anchor from the tokens that the anchor sampled. A token is cut only if its gradient
    would add to it: a sequence outside is pulled back, where ``trm`` drops it. The paper takes the
    mean over a whole batch, and V-trace for advantages.

    Open Instruct has two relatives. Its loss ``tvpo`` (a branch) has the half, the ratio of the
    policy in training and the 0.02, but takes the mean over all completions of a prompt and stops
    weights at 20. Its mask ``rho_mask_tv_divergence`` takes the mean over a sequence, as here, but
    of the old policy's ratio to the sampler and without the half, so that its bound is twice
    ``delta``; the loss is PPO's, times that ratio, clamped.

    Args:
      delta: $\delta$, from 0 to 1. 0.02 in ``tvpo``.
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

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        # Estimated total variation of each token's sequence, [batch, time].
        tokens = divergences.tv(batch.log_ratio.detach())
        distance = levels.reduce("sequence", "mean", tokens, batch.mask)
        x = batch.log_ratio + 0 * distance  # NaN throughout a sequence whose distance is unknown
        kept = gates.keeps_gradient(distance <= self.delta, x, batch.advantages, "outward")
        return gates.hard(batch, kept, log_ratio=x)
