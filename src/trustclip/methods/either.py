"""Either of two constraints."""

import torch

from trustclip.constraints.base import definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.registry import Part
from trustclip.methods.bandpo import BandPO
from trustclip.methods.clip import Clip


@definition
class Either(Composite):
    r"""Either: a token is kept where one of two methods keeps it; ``first | second`` in Python.

    $$
    C_t = C^{(1)}_t \vee C^{(2)}_t, \qquad J_t = J^{(2)}_t \ \text{where only the second
    keeps, else}\ J^{(1)}_t
    $$

    Where both weigh by the token's ratio the order does not matter, and the interval is the union
    of theirs. The default is ``trgppo``: the band of a divergence, never tighter than a clip.

    Args:
      first: a method: its name, or a mapping with ``name`` and hyper-parameters.
      second: the method that may keep what the first one cuts.

    Example:
      >>> import trustclip as tc
      >>> wider = tc.method("bandpo", ceiling=None) | tc.method("clip")
      >>> wider == tc.method("either")
      True

    References:
      Wang et al., `Trust region-guided proximal policy optimization
      <https://arxiv.org/abs/1901.10314>`_, 2019, for the union with PPO's interval
    """

    first: Part = BandPO(ceiling=None)
    second: Part = Clip()

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        first, second = self.surrogates(batch)
        follow = first.kept | ~second.kept
        objective = torch.where(follow, first.objective, second.objective)
        return Surrogate(objective, first.kept | second.kept, {**second.extras, **first.extras})
