"""Importance sampling: the policy gradient with the ratio as its weight, and no gate."""

import math

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Trait, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp
from trustclip.constraints.twins import Twins, clip_twins


@definition
class ImportanceSampling(Method, traits=Trait(0)):
    r"""Importance sampling: every token weighs by its ratio, whatever the ratio.

    $$
    J_t = w_t A_t
    $$

    What all others constrain, and the ``importance_sampling`` loss of Tinker. Useful as the
    unconstrained end of a comparison, and inside of ``icepop``, ``tis`` and ``opsm`` where the
    correction is meant to be the only constraint.

    Args:
      anchor: ``"old"``, or ``"rollout"``: what the ratio is relative to.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.1, 2.0, 9.0]]).log(), old, torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> tc.coefficient(tc.method("importance_sampling"), batch)
      tensor([[0.1000, 2.0000, 9.0000]])

    References:
      Thinking Machines, `Tinker: loss functions
      <https://tinker-docs.thinkingmachines.ai/losses>`_, 2025
    """

    anchor: Anchor = "old"

    @property
    def twins(self) -> Twins:
        return {} if self.anchor == "rollout" else clip_twins((-math.inf, math.inf))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.soft(batch, safe_exp(batch.against(self.anchor).log_ratio))
