"""Tokens that the sampler could have drawn at a position, under the three policies."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from trustclip.constraints.masked import widen
from trustclip.constraints.tensors import check_tensor, described


@dataclass(frozen=True)
class Candidates:
    r"""Log-probabilities of further tokens at every position, not only of the sampled one.

    All are normalised over the whole vocabulary, or over the kept set where the sampler had cut its
    distribution off (top-p, top-k, min-p); the trainer's always over the whole vocabulary. Three
    supports:

    * the whole vocabulary, or the set that the sampler kept: ``partial=False``, and what is not
      among the candidates cannot be drawn;
    * the sampler's likeliest tokens (vLLM's or SGLang's top-k log-probabilities): ``partial=True``.
      The rest of the sampler's distribution is then modelled by the current policy's, rescaled to
      the mass that is left, $q_v = \frac{1-Q}{1-P} p_v$, and the old policy's likewise.

    Args:
      logp: under the current policy, nats; carries the gradient. Shape [batch, time, candidates].
      logp_old: under the policy the update started from, nats.
      logp_rollout: under the policy that sampled, nats; -inf or NaN where a position has fewer
        candidates than others. A position without any is left uncentered.
      partial: whether the sampler could have drawn tokens that are not among them; for each
        position where they differ. bool, or bool of shape [batch, time].
      collision: $\sum_v p_v^2$ over the whole vocabulary under the current policy, the probability
        that two draws agree, for the metrics ``drift/*`` alone: without it all that lies beyond
        the candidates counts as one token there. Shape [batch, time].

    Raises:
      ValueError: a tensor of another kind or shape than the others.

    Example:
      >>> p, q = torch.tensor([[[0.5, 0.3]]]).log(), torch.tensor([[[0.6, 0.2]]]).log()
      >>> Candidates(p, p, q, partial=True).valid.tolist()
      [[[True, True]]]
    """

    logp: Tensor
    logp_old: Tensor
    logp_rollout: Tensor
    partial: bool | Tensor = False
    collision: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.logp, Tensor) or self.logp.dim() != 3:
            raise ValueError(
                f"`candidates.logp` must be [batch, time, candidates], got {described(self.logp)}."
            )
        for name in TENSORS:
            check_tensor(
                f"candidates.{name}", getattr(self, name), "floating point", self.logp.shape
            )
        for name, kind in (("partial", "bool"), ("collision", "floating point")):
            if isinstance(value := getattr(self, name), Tensor):
                check_tensor(f"candidates.{name}", value, kind, self.logp.shape[:2])

    @property
    def valid(self) -> Tensor:
        """True where there is a candidate. Shape [batch, time, candidates]."""
        return ~(self.logp_rollout.isnan() | self.logp_rollout.isneginf())

    @property
    def broken(self) -> Tensor:
        """True for positions with a candidate whose numbers are not finite. Shape [batch, time]."""
        finite = self.logp.isfinite() & self.logp_old.isfinite() & self.logp_rollout.isfinite()
        return (self.valid & ~finite).any(dim=2)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The candidates with a change made to each tensor."""
        values: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        for name in ("partial", "collision"):
            if isinstance(value := getattr(self, name), Tensor):
                changed = change(value[..., None].to(self.logp)).squeeze(2)
                values[name] = changed > 0 if name == "partial" else changed
        return replace(self, **values)

    def prepared(self, mask: Tensor) -> Self:
        """Wide, the old policies detached, and none where masked: what a method reads."""
        valid = self.valid & mask[..., None]
        fills = {"logp": 0.0, "logp_old": 0.0, "logp_rollout": -torch.inf}
        values = {}
        for name, fill in fills.items():
            wide = widen(getattr(self, name))
            wide = wide if name == "logp" else wide.detach()
            values[name] = torch.where(valid, wide, wide.new_full((), fill))
        return replace(self, **values)


#: An engine records so many candidates at each position if no other number is set.
DEFAULT = 64

#: The tensors of `Candidates`.
TENSORS = tuple(f.name for f in fields(Candidates) if f.name.startswith("logp"))
