"""One line for any method and any training loop: is the method right, and does it act?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import TokenBatch, as_batch
from trustclip.constraints.contract import Fault, ask, faults, of_tokens
from trustclip.constraints.diagnostics import ROUNDING
from trustclip.constraints.registry import as_method


@dataclass(frozen=True)
class Check:
    """Whether a method is right, and acted on some batches; a sentence for each fault as text.

    True where the method has no fault, and acted if there were batches.

    Args:
      method: the method, or the first of its parts that is wrong.
      faults: rules of the contract that it breaks.
      tokens: unmasked, with finite numbers; None where no batches were given.
      moved: those of them with a ratio other than 1, but for rounding.
      gated: those of them whose gradient was cut.
      furthest: the largest absolute log-ratio, nats.
    """

    method: Method
    faults: tuple[Fault, ...] = ()
    tokens: int | None = None
    moved: int = 0
    gated: int = 0
    furthest: float = 0.0

    def __bool__(self) -> bool:
        return not self.faults and (self.tokens is None or self._acts)

    @property
    def _acts(self) -> bool:
        if self.gated or (self.tokens and Trait.ACTS_ON_POLICY in self.method.traits):
            return True
        return self.moved > 0 and Trait.CUTS not in self.method.traits

    def __str__(self) -> str:
        name = repr(self.method.name)
        if self.faults:
            return "\n- ".join([f"{name} is wrong.", *map(str, self.faults)])
        if self.tokens is None:
            return (
                f"{name} passes: its gradient, its gate and what it declares agree on small "
                "batches. This check cannot know whether the formula is the one you meant."
            )
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


def check(
    method: Method | str | Mapping[str, Any],
    batches: Iterable[TokenBatch] | TokenBatch | None = None,
) -> Check:
    """Whether a method is right; with the batches of a training loop, also whether it acts on them.

    The method is tried on small made-up batches: ragged, padded on either side, with and without
    advantage, at ratio 1 and far from it. `kept` is compared with the gradient, the gradient with
    the advantage; more padding and other completions must change nothing. What a method declares
    (`Method.traits`, `Method.requires`, `Method.statistics_over`) is allowed to it. Takes less than
    a second.

    Args:
      method: the constraint, its name, or a mapping; see `trustclip.as_method`.
      batches: of all updates on some samples: in the first of them, every ratio is 1.

    Raises:
      ValueError: a log-probability is above 0, by more than a rounding (see
        `TokenBatch.not_logarithms`), or a field that the method requires is missing.

    Example:
      >>> import trustclip as tc
      >>> assert check("atr")
      >>> @tc.definition
      ... class Negated(tc.Method):
      ...     def surrogate(self, batch):
      ...         return tc.gates.score_function(batch, -torch.ones_like(batch.logp))
      >>> print(check(Negated()).faults[0])
      The gradient goes against the advantage (ratio 0.9903, advantage -1.196, kept True, \
coefficient 1.196).
      >>> logp = torch.tensor([[-1.0, -2.0]])
      >>> ones, mask = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
      >>> batches = [TokenBatch(logp, logp, ones, mask)]
      >>> print(str(check("atr", batches))[:51])
      'atr' is inert: the ratio is 1 on all 2 tokens. Pas
      >>> batches.append(TokenBatch(logp + 0.5, logp, ones, mask))
      >>> assert check("atr", batches)
    """
    method = as_method(method)
    for part in getattr(method, "parts", ()):
        if not (wrong := check(part)):
            return wrong
    found = faults(method)
    if found or batches is None:
        return Check(method, found)
    tokens = moved = gated = 0
    furthest = 0.0
    for batch in [batches] if isinstance(batches, TokenBatch) else batches:
        as_batch(batch).require(*method.requires)
        if problem := batch.not_logarithms():
            raise ValueError(problem)
        answer = ask(method, batch)
        found = found or tuple(of_tokens(method, answer))
        finite = batch.finite
        distance = torch.where(finite, batch.log_ratio.detach().abs(), 0.0)  # [batch, time]
        tokens += int(finite.sum())
        moved += int((distance > ROUNDING).sum())
        gated += int((finite & ~answer.kept).sum())
        furthest = max(furthest, float(distance.max())) if distance.numel() else furthest
    return Check(method, found, tokens, moved, gated, furthest)
