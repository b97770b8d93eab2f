"""IcePop: drop tokens on which the sampling engine and the trainer disagree."""

from typing import Literal

from torch import Tensor

from trustclip.constraints import rejection
from trustclip.constraints.base import AboveOne, Trait, UpToOne, definition, spans
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.compose import Weighted, corrected_twins
from trustclip.constraints.registry import Part
from trustclip.constraints.twins import Twins
from trustclip.methods.atr import ATR

_OVER: dict[str, Literal["token", "sum", "mean"]] = {
    "token": "token",
    "sequence": "sum",
    "geometric": "mean",
}
Policy = Literal["old", "new"]


@definition
class IcePop(Weighted):
    r"""IcePop: any method, without the tokens whose sampler and trainer probabilities disagree.

    $$
    \rho_t\, \mathbf 1[\alpha \le \rho_t \le \beta]\, J_t, \qquad
    \rho_t = \frac{\pi_{old}(y_t)}{\pi_{rollout}(y_t)}
    $$

    with $J_t$ the objective of ``inner``: importance sampling as in ``tis``, but a ratio out
    of range drops its token, on both sides, instead of being truncated. At ``"sequence"`` level it
    is the masked importance sampling that TRL does by default. Turn off the trainer's own
    correction, or it is applied twice.

    *The policy compared.* With ``policy="old"`` the range is one for two engines that hold the same
    weights, whatever the update does. With ``policy="new"``, the form of INTELLECT-3 and prime-rl,
    it is $\pi_\theta(y_t)/\pi_{rollout}(y_t)$ that has to be in range: what the engines disagree on
    and what the update has moved, together, so that the mask is a trust region of its own. The
    weight is $\rho_t$ in both, and its product with the ratio $\pi_\theta/\pi_{rollout}$:
    ``icepop(inner="importance_sampling", policy="new", floor=0.2)`` is the loss of prime-rl.

    Args:
      inner: the method to correct: its name, or a mapping with ``name`` and hyper-parameters.
      floor: $\alpha$, least ratio kept, at most 1; None for no lower bound. 0.5 in the source and
        in INTELLECT-3, 0.2 in prime-rl.
      ceiling: $\beta$, largest ratio kept, above 1. 5 in all three.
      policy: whose ratio to the sampler has to be in range: ``"old"`` (the source) or ``"new"``.
      level: ``"token"`` (the source); ``"sequence"``, by the product of the sequence's ratios;
        ``"geometric"``, by their geometric mean, which does not grow with length (verl's bounds
        for it are 0.999 and 1.001).

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.tensor([[0.5, 0.9, 0.1]]).log()
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool),
      ...                       logp_rollout=torch.tensor([[0.4, 0.1, 0.5]]).log())
      >>> tc.coefficient(tc.method("icepop", inner="clip"), batch)
      tensor([[1.2500, 0.0000, 0.0000]])

    References:
      Ling Team, `Every step evolves: scaling reinforcement learning for trillion-scale thinking
      model <https://arxiv.org/abs/2510.18855>`_, 2025
    """

    also_requires = ("logp_rollout",)

    inner: Part = ATR()
    floor: UpToOne | None = 0.5
    ceiling: AboveOne = 5.0
    level: rejection.Spread = "token"
    policy: Policy = "old"

    @property
    def traits(self) -> Trait:
        own = Trait.CUTS | Trait.ACTS_ON_POLICY | Trait.CORRECTS_SAMPLER
        compared = Trait.WEIGHS_OLD_POLICY if self.policy == "old" else Trait(0)
        return super().traits | own | spans(self.level) | compared

    @property
    def twins(self) -> Twins:
        if self.level == "geometric" or self.policy == "new":
            return {}
        return corrected_twins(self.inner, self.level, self.floor, self.ceiling, truncated=False)

    def weight(self, batch: TokenBatch) -> Tensor:
        # The ratio in range is the one that weighs, or the new policy's of the same spread.
        between: rejection.Between = "old_rollout" if self.policy == "old" else "new_rollout"
        bounds = rejection.log_bounds(self.floor, self.ceiling)
        over = _OVER[self.level]
        kept = rejection.within(batch, rejection.log_ratio(batch, between), over, bounds)
        return kept * rejection.importance(batch, "old_rollout", self.level)
