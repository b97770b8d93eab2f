"""What goes into a method and what comes out: typed, frozen, every tensor ``[batch, time]``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

from trustclip.masked import widen, zero_masked

#: Log-ratio bounds: one pair of numbers, or tensors with a pair for every token.
LogBounds = tuple[Tensor | float, Tensor | float]

#: Policy that the new one is compared with: the proximal one, or the one that sampled.
Anchor = Literal["old", "rollout"]

#: Optional fields, with who can supply each: named in the error when a method misses one.
SUPPLIERS = {
    "entropy": "the loss head (entropy of the current policy at each position)",
    "kl_old_new": "the loss head from the old policy's hidden states (exact KL(old || new))",
    "kl_new_old": "the loss head from the old policy's hidden states (exact KL(new || old))",
    "top_k_kl": "the loss head from the old policy's top-K log-probabilities (their KL)",
    "top_k_tv": "the loss head from the old policy's top-K log-probabilities (their TV)",
    "logp_rollout": "the sampling engine (log-probabilities it sampled with)",
    "groups": "the data loader (index of the prompt each sequence answers)",
    "keys": "the engine (a number that is unique to each sample and position)",
}


@dataclass(frozen=True)
class TokenBatch:
    r"""Everything a method may look at, one value per sampled token.

    With $x_t = \log\pi_\theta(y_t) - \log\pi_{old}(y_t)$ the log-ratio and $w_t = e^{x_t}$ the
    ratio. Positions where ``mask`` is False never matter, whatever they hold.

    Args:
      logp: log-probability of the sampled token under the current policy, nats; carries the
        gradient. Half precision is widened to float32; float64 stays float64.
      logp_old: the same under the policy the update started from (the proximal policy), nats.
      advantages: advantage of the token.
      mask: True where the token counts.
      entropy: entropy of the current policy at the position, nats.
      kl_old_new: exact KL(old || new) over the vocabulary at the position, nats.
      kl_new_old: exact KL(new || old) over the vocabulary at the position, nats.
      top_k_kl: KL(old || new) over the old policy's likeliest tokens, the sampled one, and all
        others as one; see `trustclip.divergences.with_rest`.
      top_k_tv: total variation over the same.
      logp_rollout: log-probability under the engine that sampled, nats; NaN where it gave none.
      groups: int64, index of the prompt the sequence answers (constant along time).
      keys: int64, unique per (sample, position): makes random selection reproducible across
        ranks and micro-batches.
      statistics: numbers measured over more tokens than this batch holds, by name; see
        `Method.statistics`.

    Raises:
      ValueError: a field is no tensor of the shape and kind it needs; the message names it.

    Example:
      >>> batch = TokenBatch(
      ...     logp=torch.tensor([[-1.0, float("nan")]]), logp_old=torch.tensor([[-1.2, 0.0]]),
      ...     advantages=torch.ones(1, 2), mask=torch.tensor([[True, False]]))
      >>> [round(x, 3) for x in batch.log_ratio[0].tolist()]
      [0.2, 0.0]
    """

    logp: Tensor
    logp_old: Tensor
    advantages: Tensor
    mask: Tensor
    entropy: Tensor | None = field(default=None, kw_only=True)
    kl_old_new: Tensor | None = field(default=None, kw_only=True)
    kl_new_old: Tensor | None = field(default=None, kw_only=True)
    top_k_kl: Tensor | None = field(default=None, kw_only=True)
    top_k_tv: Tensor | None = field(default=None, kw_only=True)
    logp_rollout: Tensor | None = field(default=None, kw_only=True)
    groups: Tensor | None = field(default=None, kw_only=True)
    keys: Tensor | None = field(default=None, kw_only=True)
    statistics: Mapping[str, Tensor] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_tensor("logp", self.logp)
        if self.logp.dim() != 2:
            raise ValueError(f"`logp` must be [batch, time], got shape {tuple(self.logp.shape)}.")
        for item in fields(self):
            value = getattr(self, item.name)
            optional = item.default is None
            if item.name == "statistics" or (optional and value is None):
                continue
            _check_tensor(item.name, value)
            if value.shape != self.logp.shape:
                raise ValueError(
                    f"`{item.name}` must have the shape of `logp`, {tuple(self.logp.shape)}, "
                    f"got {tuple(value.shape)}."
                )
            _check_kind(item.name, value)
        # Set once, here: a frozen dataclass whose fields are already masked and wide enough.
        for name in (
            "logp",
            "logp_old",
            "advantages",
            "entropy",
            "kl_old_new",
            "kl_new_old",
            "top_k_kl",
            "top_k_tv",
            "logp_rollout",
        ):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, zero_masked(widen(value), self.mask))

    @property
    def log_ratio(self) -> Tensor:
        """log(new / old) of the sampled token, nats; 0 where masked. Shape [batch, time]."""
        return self.logp - self.logp_old

    @property
    def p_old(self) -> Tensor:
        """Probability of the sampled token under the old policy. Shape [batch, time]."""
        return self.logp_old.exp()

    @property
    def rollout_log_ratio(self) -> Tensor:
        """log(old / rollout) of the sampled token, nats; 0 where the sampler gave none.

        Shape [batch, time].
        """
        x = self.logp_old - self.given("logp_rollout")
        return zero_masked(x, ~x.isnan())

    def against(self, anchor: Anchor) -> "TokenBatch":
        """The batch measured against the old policy (itself), or the one that sampled."""
        if anchor == "old":
            return self
        return replace(self, logp_old=self.logp_old - self.rollout_log_ratio)

    def require(self, *names: str) -> None:
        """Raise a ValueError that names the first missing field and who can supply it."""
        for name in names:
            self.given(name)

    def given(self, name: str) -> Tensor:
        """An optional field that must be there.

        Raises:
          ValueError: it is missing; the message names it and who can supply it.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"this method needs `{name}` in the batch; it comes from {SUPPLIERS[name]}."
            )
        return value

    def with_logp(self, logp: Tensor) -> "TokenBatch":
        """The same batch with another ``logp``."""
        return replace(self, logp=logp)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"`{name}` must be a torch tensor, got {type(value).__name__}.")


def _check_kind(name: str, value: Tensor) -> None:
    wanted = {"mask": "bool", "groups": "int64", "keys": "int64"}.get(name, "floating point")
    if wanted == "floating point":
        right = value.is_floating_point()
    else:
        right = value.dtype == getattr(torch, wanted)
    if not right:
        raise ValueError(f"`{name}` must be {wanted}, got {value.dtype}.")


@dataclass(frozen=True)
class Surrogate:
    """What a method makes of a batch.

    Args:
      objective: per token, to be maximised; differentiable in ``batch.logp``; 0 where masked.
        Shape [batch, time].
      kept: True where the token keeps its gradient (soft gates keep every token); False where
        masked. Shape [batch, time].
      extras: further per-token tensors worth logging, by name.
    """

    objective: Tensor
    kept: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise, its per-token parts, and numbers to log.

    Args:
      value: scalar; its gradient is that of minus the aggregated objective.
      per_token: minus the objective, before aggregation. Shape [batch, time].
      metrics: name -> (sum, count), both scalars without gradient: add them over micro-batches
        and ranks, then divide.
    """

    value: Tensor
    per_token: Tensor
    metrics: Mapping[str, tuple[Tensor, Tensor]]
