"""Both of two constraints."""

import torch

from trustclip.constraints.base import definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.registry import Part
from trustclip.methods.atr import ATR


@definition
class Both(Composite):
    r"""Both: a token is kept where two methods keep it; written ``first & second`` in Python.

    $$
    C_t = C^{(1)}_t \wedge C^{(2)}_t, \qquad J_t = J^{(1)}_t \ \text{where kept}
    $$

    The objective, and with it the weight of a kept token, is the first one's; the second only
    cuts. Where both weigh by the token's ratio the order does not matter, and the interval is the
    intersection of theirs. The default adds to ``atr`` a trust region of the whole sequence.

    Args:
      first: the method whose objective it is: its name, or a mapping with ``name`` and
        hyper-parameters.
      second: the method that cuts as well.

    Example:
      >>> import trustclip as tc
      >>> joined = tc.method("atr", delta=0.05) & tc.method("clip")
      >>> joined == tc.method("both", first={"name": "atr", "delta": 0.05}, second="clip")
      True

    References:
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026: the operator takes any condition
    """

    first: Part = ATR()
    second: Part = ATR(delta=0.01, level="sequence", reduction="mean", weight="token")

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        first, second = self.surrogates(batch)
        objective = torch.where(second.kept, first.objective, first.objective.detach())
        # Where the second is NaN it is unknown whether to cut, so the result is NaN.
        objective = objective * torch.where(second.objective.isnan(), torch.nan, 1.0)
        return Surrogate(objective, first.kept & second.kept, {**second.extras, **first.extras})
