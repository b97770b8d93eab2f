"""Dual clip: PPO's clip with a ceiling where the advantage is negative."""

import math

from trustclip.constraints import gates
from trustclip.constraints.base import AboveOne, Offsets, Positive, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.twins import Twins, clip_twins


@definition
class DualClip(Offsets):
    r"""Dual clip: a token of negative advantage is also cut once its ratio passes a ceiling.

    $$
    1 - \epsilon_{low} \le w_t \le 1 + \epsilon_{high}
    \quad\text{and}\quad w_t \le c \ \text{where}\ A_t < 0
    $$

    PPO's clip never cuts a step back towards ratio 1; with $A < 0$ and a large ratio that
    step has unbounded weight $w$. No ratio interval with an ``outward`` gate can say this:
    it needs a constraint per quadrant.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      ceiling: $c$, largest ratio that keeps its gradient where A < 0; above 1 + high.
        3 in the paper and in verl, 10 in DAPO's scripts; TRL calls it ``delta`` (4 in INTELLECT-2).

    Example:
      >>> import torch, trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[4.0, 2.0]]).log() - 2, torch.full((1, 2), -2.0),
      ...                       -torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("dual_clip"), batch)
      tensor([[ 0., -2.]])

    References:
      Ye et al., `Mastering complex control in MOBA games with deep reinforcement learning
      <https://arxiv.org/abs/1912.09729>`_, 2020
    """

    low: UpToOne = 0.2
    high: Positive = 0.2
    ceiling: AboveOne = 3.0

    def __post_init__(self) -> None:
        if self.ceiling < 1 + self.high:
            raise ValueError(
                f"`ceiling` must be at least 1 + high = {1 + self.high}, got {self.ceiling}."
            )

    @property
    def twins(self) -> Twins:
        twins = clip_twins(self.log_interval(), self.ceiling)
        return {trainer: twin for trainer, twin in twins.items() if trainer != "trustclip"}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        low, high = self.log_interval()
        return gates.by_sign(batch, (-math.inf, high), (low, math.log(self.ceiling)))
