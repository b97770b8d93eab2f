"""One line for any training loop: does the constraint act on its batches at all?"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.diagnostics import ROUNDING


@dataclass(frozen=True)
class Check:
    """What a method did on some batches; true where it acted, and a sentence as text.

    Args:
      method: the method.
      tokens: unmasked, with finite numbers.
      moved: those of them with a ratio other than 1, but for rounding.
      gated: those of them whose gradient was cut.
      furthest: the largest absolute log-ratio, nats.
    """

    method: Method
    tokens: int
    moved: int
    gated: int
    furthest: float

    def __bool__(self) -> bool:
        if self.gated or (self.tokens and Trait.ACTS_ON_POLICY in self.method.traits):
            return True
        return self.moved > 0 and Trait.CUTS not in self.method.traits

    def __str__(self) -> str:
        name = repr(self.method.name)
        if not self.tokens:
            return f"{name} is inert: no token is unmasked."
        if self:
            return (
                f"{name} acts: it gated {self.gated / self.tokens:.2%} of {self.tokens:,} tokens."
            )
        if not self.moved:
            return (
                f"{name} is inert: the ratio is 1 on all {self.tokens:,} tokens. Pass the "
                "log-probabilities from before the first update on these samples as `logp_old`, "
                "and make two or more updates with them."
            )
        return (
            f"{name} is inert: its gate closed on none of {self.tokens:,} tokens, with log-ratios "
            f"of up to {self.furthest:.2g} nats. Its threshold is too wide for these updates."
        )


def check(method: Method, batches: Iterable[TokenBatch]) -> Check:
    """Whether a constraint acts on the batches of a training loop, or is inert.

    Args:
      method: the constraint.
      batches: of all updates on some samples: in the first of them, every ratio is 1.

    Raises:
      ValueError: a log-probability is above 0, by more than a rounding (see
        `TokenBatch.not_logarithms`), or a field that the method requires is missing.

    Example:
      >>> import trustclip as tc
      >>> logp = torch.tensor([[-1.0, -2.0]])
      >>> ones, mask = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
      >>> batches = [TokenBatch(logp, logp, ones, mask)]
      >>> print(str(check(tc.method("atr"), batches))[:51])
      'atr' is inert: the ratio is 1 on all 2 tokens. Pas
      >>> batches.append(TokenBatch(logp + 0.5, logp, ones, mask))
      >>> assert check(tc.method("atr"), batches)
    """
    tokens = moved = gated = 0
    furthest = 0.0
    for batch in batches:
        batch.require(*method.requires)
        if problem := batch.not_logarithms():
            raise ValueError(problem)
        finite = batch.finite
        with torch.no_grad():
            distance = torch.where(finite, batch.log_ratio.abs(), 0.0)  # [batch, time]
            cut = finite & ~method.surrogate(batch).kept
        tokens += int(finite.sum())
        moved += int((distance > ROUNDING).sum())
        gated += int(cut.sum())
        furthest = max(furthest, float(distance.max())) if distance.numel() else furthest
    return Check(method, tokens, moved, gated, furthest)
