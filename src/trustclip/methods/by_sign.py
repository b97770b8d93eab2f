"""One constraint for rewarded tokens, another one for punished ones."""

import torch

from trustclip.constraints.base import definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip
from trustclip.methods.reinforce import Reinforce


@definition
class BySign(Composite):
    r"""By sign: one method trains tokens of positive advantage, another one all others.

    $$
    J_t = \begin{cases} J^{(+)}_t & A_t > 0 \\ J^{(-)}_t & A_t \le 0 \end{cases}
    $$

    and likewise for the gate. The default is that of UP: a rewarded token has the plain score, a
    punished one is clipped. Acts at ratio 1 only if one of the two does.

    Args:
      positive: the method for tokens of positive advantage: its name, or a mapping with ``name``
        and hyper-parameters.
      negative: the method for all others.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.zeros(1, 2) - 1
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, -0.5]]), old, torch.tensor([[1.0, -1.0]]),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("by_sign"), batch)
      tensor([[1., 0.]])

    References:
      UP, arXiv 2607.06987, 2026
    """

    positive: Part = Reinforce()
    negative: Part = Clip()

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        positive, negative = self.surrogates(batch)
        rewarded = batch.advantages > 0  # [batch, time]
        objective = torch.where(rewarded, positive.objective, negative.objective)
        kept = torch.where(rewarded, positive.kept, negative.kept)
        return Surrogate(objective, kept, {**negative.extras, **positive.extras})
