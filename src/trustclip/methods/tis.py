"""Truncated importance sampling: correct for the engine that sampled, around any method."""

from typing import Literal

from trustclip.constraints.base import AboveOne, definition
from trustclip.constraints.compose import Choice, corrected_twins
from trustclip.constraints.registry import Part
from trustclip.constraints.twins import Twins
from trustclip.methods.atr import ATR
from trustclip.methods.sampler import Sampler


@definition
class TIS(Choice):
    r"""TIS: any method weighs each token by old over sampler probability, up to a ceiling.

    $$
    \rho_t\, J_t, \qquad
    \rho_t = \min\Big(\frac{\pi_{old}(y_t)}{\pi_{rollout}(y_t)},\, C\Big)
    $$

    with $J_t$ the objective of ``inner``. A sampling engine (vLLM, SGLang) and a trainer
    give the same weights slightly different probabilities; the product of $\rho$ and the
    ratio $w = \pi_\theta/\pi_{old}$ is the importance weight against the policy that really
    sampled, and only its second factor is what ``inner`` constrains. $\rho$ is a constant
    to the gradient. Acts at ratio 1 too.

    Turn off the trainer's own correction (TRL: ``vllm_importance_sampling_correction``), or it is
    applied twice.

    Args:
      inner: the method to correct: its name, or a mapping with ``name`` and hyper-parameters.
      ceiling: $C$, largest weight, above 1. 2 in the source and in verl, 3 in TRL.
      level: ``"token"``; ``"sequence"`` weighs all tokens of a sequence by the product of their
        ratios, truncated.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.tensor([[0.5, 0.9]]).log()
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                       logp_rollout=torch.tensor([[0.4, 0.1]]).log())
      >>> tc.coefficient(tc.method("tis", inner={"name": "atr", "delta": 0.05}), batch)
      tensor([[1.2500, 2.0000]])

    References:
      Yao et al., `Your efficient RL framework secretly brings you off-policy RL training
      <https://fengyao.notion.site/off-policy-rl>`_, 2025
    """

    also_requires = ("logp_rollout",)

    inner: Part = ATR()
    ceiling: AboveOne = 2.0
    level: Literal["token", "sequence"] = "token"

    @property
    def twins(self) -> Twins:
        return corrected_twins(self.inner, self.level, None, self.ceiling, truncated=True)

    def as_sampler(self) -> Sampler:
        weight = {"weigh_by": self.level, "weight_ceiling": self.ceiling}
        return Sampler(inner=self.inner, ceiling=None, **weight)
