"""IcePop: drop tokens on which the sampling engine and the trainer disagree."""

from typing import Literal

from trustclip.constraints.base import AboveOne, UpToOne, definition
from trustclip.constraints.compose import Choice, corrected_twins
from trustclip.constraints.registry import Part
from trustclip.constraints.twins import Twins
from trustclip.methods.atr import ATR
from trustclip.methods.sampler import Sampler


@definition
class IcePop(Choice):
    r"""IcePop: any method drops the tokens on whose probability sampler and trainer disagree.

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
    level: Literal["token", "sequence", "geometric"] = "token"
    policy: Literal["old", "new"] = "old"

    @property
    def twins(self) -> Twins:
        if self.level == "geometric" or self.policy == "new":
            return {}
        return corrected_twins(self.inner, self.level, self.floor, self.ceiling, truncated=False)

    def as_sampler(self) -> Sampler:
        # The ratio in range is the one that weighs, or the new policy's of the same spread.
        return Sampler(
            inner=self.inner,
            between="old_rollout" if self.policy == "old" else "new_rollout",
            level="token" if self.level == "token" else "sequence",
            reduction="mean" if self.level == "geometric" else "sum",
            floor=self.floor,
            ceiling=self.ceiling,
            weigh_by=self.level,
        )
