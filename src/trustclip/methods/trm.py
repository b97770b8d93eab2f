"""TRM: drop whole sequences if any of their tokens has left the trust region."""

from typing import Literal

from trustclip.constraints.base import Positive, definition
from trustclip.constraints.batch import Anchor
from trustclip.constraints.compose import Choice
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip
from trustclip.methods.sampler import Sampler


@definition
class TRM(Choice):
    r"""TRM: any method drops the sequences whose largest or mean divergence is too large.

    $$
    J_t \cdot \mathbf 1\big[\max_s D_s \le \delta\big] \qquad\text{or}\qquad
    J_t \cdot \mathbf 1\Big[\frac1T\sum_s D_s \le \delta\Big]
    $$

    with $J_t$ the objective of ``inner`` and $D_s$ the KL divergence at the token's
    position. What bounds the error of the surrogate objective over a long sequence is the largest
    divergence in it, which no constraint on tokens one by one controls. The mask depends on
    neither the sign of the advantage nor the side of the ratio. It favours short sequences, the
    more so with ``"max"``.

    Args:
      inner: the method to mask: its name, or a mapping with ``name`` and hyper-parameters.
      reduction: ``"max"`` (TRM-Max, the one with a guarantee) or ``"mean"`` (TRM-Avg).
      delta: $\delta$, nats. verl suggests 0.001 to 0.01 for the mean of k3.
      divergence: ``"k3"``, the estimate of KL(old || new) from the sampled token, as in verl, or
        ``"kl_old_new"``, exact (the paper).
      anchor: ``"old"``, or ``"rollout"`` (the paper: the policy that sampled); for k3.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((2, 2), -1.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.1, 0.1], [0.0, 0.5]]), old, torch.ones(2, 2),
      ...                       torch.ones(2, 2, dtype=torch.bool))
      >>> tc.method("trm").surrogate(batch).kept  # k3(0.1) = 0.005, k3(0.5) = 0.149
      tensor([[ True,  True],
              [False, False]])

    References:
      Li et al., `Trust region masking for long-horizon LLM reinforcement learning
      <https://arxiv.org/abs/2512.23075>`_, 2025
    """

    inner: Part = Clip()
    reduction: Literal["max", "mean"] = "max"
    delta: Positive = 0.05
    divergence: Literal["k3", "kl_old_new"] = "k3"
    anchor: Anchor = "old"

    def as_sampler(self) -> Sampler:
        if self.divergence == "kl_old_new" and self.anchor == "rollout":
            raise ValueError(
                "`anchor` 'rollout' needs `divergence` 'k3': no engine computes that KL."
            )
        return Sampler(
            inner=self.inner,
            measure=self.divergence,
            between="new_old" if self.anchor == "old" else "new_rollout",
            level="sequence",
            reduction=self.reduction,
            ceiling=self.delta,
        )
