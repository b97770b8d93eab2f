"""TRM: drop whole sequences if any of their tokens has left the trust region."""

from typing import Literal

from torch import Tensor

from trustclip.constraints import rejection
from trustclip.constraints.base import Positive, Trait, anchor_fields, definition
from trustclip.constraints.batch import Anchor, TokenBatch
from trustclip.constraints.compose import Weighted
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip


@definition
class TRM(Weighted):
    r"""TRM: any method, without the sequences whose largest or mean divergence is too large.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence == "kl_old_new" and self.anchor == "rollout":
            raise ValueError(
                "`anchor` 'rollout' needs `divergence` 'k3': no engine computes that KL."
            )

    @property
    def requires(self) -> tuple[str, ...]:
        sampler = anchor_fields(self.anchor)
        exact = ("kl_old_new",) if self.divergence == "kl_old_new" else ()
        return tuple(dict.fromkeys((*super().requires, *sampler, *exact)))

    @property
    def traits(self) -> Trait:
        acts = Trait.ACTS_ON_POLICY if self.anchor == "rollout" else Trait(0)
        return super().traits | Trait.CUTS | Trait.SEES_OTHERS | acts

    def weight(self, batch: TokenBatch) -> Tensor:
        between: rejection.Between = "new_old" if self.anchor == "old" else "new_rollout"
        values = rejection.measurement(batch, between, self.divergence)
        return rejection.within(batch, values, self.reduction, (None, self.delta))
