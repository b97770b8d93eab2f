"""GSPO: the clip of a whole sequence."""

from typing import ClassVar, Literal

import torch

from trustclip.constraints import gates, levels
from trustclip.constraints.base import Interval, Offsets, Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.twins import Twins, verl_settings


@definition
class GSPO(Offsets, Interval):
    r"""GSPO: the length-normalised ratio of the whole sequence is clipped and weights its tokens.

    $$
    s = \exp\Big(\frac1T \sum_t \log w_t\Big), \qquad 1 - \epsilon_{low} \le s \le 1 +
    \epsilon_{high}, \qquad \frac{\partial J}{\partial\log\pi_\theta(y_t)} = s A
    $$

    for every token of a sequence within bounds or moving back towards them, and 0 otherwise (with
    ``sequence_mean`` the paper's $s A / T$ follows). A mean of hundreds of log-ratios is far
    steadier than one, hence the narrow bounds. The same gradient as ``clip_higher`` with
    ``level="sequence"``.

    *Variants.* ``"gspo_token"`` is the paper's form for advantages that differ within a sequence:
    the weight $\mathrm{sg}(s)\, \pi_\theta/\mathrm{sg}(\pi_\theta)$ gives each token its own
    $s A_t$, gated by its own sign, so that ``icepop`` and other masks around it drop what they
    name. It is what verl runs under the name of gspo. ``"gspo"`` follows the gradient through the
    mean, as TRL does: each token gets $s$ times the mean of what its sequence's tokens have,
    advantages, weights and gates. While they share one advantage and nothing is around the method,
    the two are the same; otherwise a token can get a gradient that is gated, without an advantage
    or against it.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      variant: ``"gspo_token"``, or ``"gspo"`` to repeat a trainer that follows the mean.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -2.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, -0.4998]]), old, -torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("gspo"), batch)  # s = 1.0001: within bounds
      tensor([[-1.0001, -1.0001]])

    References:
      Zheng et al., `Group sequence policy optimization <https://arxiv.org/abs/2507.18071>`_, 2025
    """

    level: ClassVar[levels.Level] = "sequence"

    low: UpToOne = 3e-4
    high: Positive = 4e-4
    variant: Literal["gspo_token", "gspo"] = "gspo_token"

    @property
    def traits(self) -> Trait:
        shared = Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES
        own = shared if self.variant == "gspo" else Trait(0)
        return super().traits | own

    @property
    def twins(self) -> Twins:
        twins = super().twins
        twins["TRL"] |= {"loss_type": "grpo"}
        twins["verl"] |= verl_settings(loss_agg_mode="seq-mean-token-mean")
        return twins

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        bounded = super().surrogate(batch)
        if self.variant == "gspo_token":
            return bounded
        mean = levels.reduce("sequence", "mean", batch.log_ratio, batch.mask)
        literal = gates.hard(batch, bounded.kept, log_ratio=mean)
        objective = torch.where(bounded.kept, literal.objective, bounded.objective)
        return Surrogate(objective, bounded.kept)
