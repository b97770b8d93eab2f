"""REINFORCE: the policy gradient itself, without a ratio and without a constraint."""

import torch

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch


@definition
class Reinforce(Method, traits=Trait(0)):
    r"""REINFORCE: every token weighs 1, however far the policy has moved from the one that sampled.

    $$
    J_t = A_t \log\pi_\theta(y_t)
    $$

    The gradient of the expected reward at the first update of a generation, where the ratio is 1;
    biased afterwards. The baseline for a constraint that ought to help, what is left of many losses
    that drop the ratio (verl's ``gpg``), and with a penalty on the log-ratio Kimi's and DRO's loss:
    ``tc.method("reinforce") + tc.penalty("k2", beta)``. With the ratio for a weight it is
    ``importance_sampling``.

    Example:
      >>> import trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, -2.0]]), old, torch.tensor([[1.0, -2.0]]),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("reinforce"), batch)
      tensor([[ 1., -2.]])

    References:
      Williams, `Simple statistical gradient-following algorithms for connectionist reinforcement
      learning <https://doi.org/10.1007/BF00992696>`_, 1992
    """

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.score_function(batch, torch.ones_like(batch.logp_old))
