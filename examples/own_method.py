"""A constraint of one's own: an interval of the ratio that closes over the completion.

    trustclip check examples/own_method.py:Narrowing
    trustclip demo --method examples/own_method.py:Narrowing

Early tokens decide what the later ones are about, so they may move by `first` and the last one by
`last`, on a straight line of log-ratios in between.
"""

import torch

from trustclip import Method, Surrogate, TokenBatch, Trait, definition, gates
from trustclip.constraints.base import Positive


@definition
class Narrowing(Method):
    r"""Narrowing: the log-ratio's bound shrinks from the first token to the last.

    Args:
      first: bound of the absolute log-ratio at the first token, nats.
      last: the same at the last token.
    """

    first: Positive = 0.4
    last: Positive = 0.1

    @property
    def traits(self) -> Trait:
        return Trait.CUTS | Trait.SEES_OTHERS  # a token's bound depends on where it stands

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        mask = batch.mask
        place = (mask.cumsum(1) - 1).clamp(min=0)  # [batch, time], 0 at the first trained token
        share = place / (mask.sum(1, keepdim=True) - 1).clamp(min=1)
        bound = self.first + (self.last - self.first) * share
        kept = gates.keeps_gradient(
            torch.abs(batch.log_ratio) <= bound, batch.log_ratio, batch.advantages, "outward"
        )
        return gates.hard(batch, kept)
