"""PSPO: probabilities smoothed towards the old policy, and no clip."""

from typing import Annotated

from pydantic import Field

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp


@definition
class PSPO(Method, traits=Trait.ACTS_ON_POLICY):
    r"""PSPO: the ratio is taken to a mixture of the new and the old policy, unclipped.

    $$
    \tilde w_t = \frac{(1-\alpha)\,\pi_\theta(y_t) + \alpha\,\pi_{old}(y_t)}{\pi_{old}(y_t)}
    = (1-\alpha)\, w_t + \alpha, \qquad c_t = (1-\alpha)\, w_t
    $$

    The mixture is closer to the old policy than the new one is, in every divergence. In the
    gradient, token by token, that is plain importance weighting at a learning rate smaller by
    $\alpha$: at ratio 1 too, and without any bound.

    Args:
      alpha: $\alpha$, share of the old policy, between 0 and 1.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[1.0, 2.0]]).log(), old, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("pspo"), batch)
      tensor([[0.9000, 1.8000]])

    References:
      Dwyer et al., `It's not you, it's clipping: a soft trust-region via probability smoothing for
      LLM RL <https://arxiv.org/abs/2509.21282>`_, 2025
    """

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.1

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.soft(batch, (1 - self.alpha) * safe_exp(batch.log_ratio) + self.alpha)
