"""Input and output of a method: typed, frozen, every tensor ``[batch, time]``.

In one file because a field, its checks and its meaning are one contract.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor

from trustclip.constraints.candidates import Candidates
from trustclip.constraints.masked import choose, readable, seen_finite, widen, zero_masked
from trustclip.constraints.tensors import check_tensor, described, pad, places

#: Log-ratio bounds: one pair of numbers, or tensors with a pair for every token.
LogBounds = tuple[Tensor | float, Tensor | float]

#: Metrics as (sum, count), which add up over micro-batches and ranks.
Metrics = dict[str, tuple[Tensor, Tensor]]

#: Policy that the new one is compared with: the proximal one, or the one that sampled.
Anchor = Literal["old", "rollout"]

#: Floating-point fields: widened to float32 at least, 0 where masked.
FLOATS = (
    *("logp", "logp_old", "advantages", "entropy", "kl_old_new", "kl_new_old"),
    *("top_k_kl", "top_k_tv", "logp_rollout", "logp_ref", "entropy_old"),
)
#: A gradient flows through these fields.
_WITH_GRADIENT = ("logp", "kl_old_new", "kl_new_old")

#: These fields are log-probabilities of the sampled token.
_LOGPS = ("logp", "logp_old", "logp_rollout", "logp_ref")

#: Kinds of the other fields.
_KINDS = {"mask": "bool", "groups": "int64", "keys": "int64", "lag": "int64"}

#: A log-probability above this is no rounding: a logit of up to 128 less a logsumexp in bfloat16 is
#: above 0 by at most 0.25. Of losses, probabilities or logits in place of log-probabilities nearly
#: every batch has larger ones.
_NO_ROUNDING = 0.5

#: Fields of every batch.
_REQUIRED = ("logp", "logp_old", "advantages", "mask")

#: Optional fields, with who can supply each; the error about a missing one names it.
SUPPLIERS = {
    "entropy": "the loss head (entropy of the current policy at each position)",
    "entropy_old": "the old policy's pass over the samples (its entropy at each position)",
    "kl_old_new": "the loss head from the old policy's hidden states (exact KL(old || new))",
    "kl_new_old": "the loss head from the old policy's hidden states (exact KL(new || old))",
    "top_k_kl": "the loss head from the old policy's top-K log-probabilities (their KL)",
    "top_k_tv": "the loss head from the old policy's top-K log-probabilities (their TV)",
    "logp_rollout": "the sampling engine (log-probabilities it sampled with)",
    "logp_ref": "the reference model (its pass over the samples)",
    "groups": "the data loader (index of the prompt each sequence answers)",
    "keys": "the engine (a number that is unique to each sample and position)",
    "lag": "the engine (updates since each completion was sampled)",
    "candidates": "the engine (log-probabilities of further tokens at each position, under the "
    "current, the old and the sampling policy)",
}


@dataclass(frozen=True, eq=False)
class TokenBatch:
    r"""The input of a method: one value per sampled token.

    With $x_t = \log\pi_\theta(y_t) - \log\pi_{old}(y_t)$ the log-ratio and $w_t = e^{x_t}$ the
    ratio. Positions where ``mask`` is False never matter, whatever they hold.

    *Gradients.* Everything but ``logp`` is detached, so ``TokenBatch(logp, logp, ...)`` trains. The
    two exact KL divergences keep their graph: the methods whose pull is the gradient of the KL
    itself (``truly_ppo``, ``penalty``) follow it, and no other method does.

    *Numbers that are not finite.* An unmasked token with a NaN or an infinity in any floating-point
    field has a ``logp`` and ``logp_old`` of NaN here. No gate closes on it: its gradient and the
    loss become NaN, in every method, so that the guard of a training loop sees it. A method that
    measures a prefix or a sequence gives NaN to all tokens it measured with that one. Statistics
    over many tokens are over those in `finite`, so the other sequences are treated as if the token
    were masked.

    Args:
      logp: log-probability of the sampled token under the current policy, nats; carries the
        gradient. Half precision is widened to float32; float64 stays float64.
      logp_old: the same under the policy the update started from (the proximal policy), nats.
      advantages: advantage of the token.
      mask: True where the token counts.
      entropy: entropy of the current policy at the position, nats.
      entropy_old: entropy of the old policy at the position, nats.
      kl_old_new: exact KL(old || new) over the vocabulary at the position, nats.
      kl_new_old: exact KL(new || old) over the vocabulary at the position, nats.
      top_k_kl: KL(old || new) over the old policy's likeliest tokens, the sampled one, and all
        others as one; see `trustclip.constraints.divergences.with_rest`.
      top_k_tv: total variation over the same.
      logp_rollout: log-probability under the engine that sampled, nats; NaN, and no other number
        that is not finite, means that the engine gave none.
      logp_ref: log-probability under the reference model, nats.
      groups: int64, index of the prompt the sequence answers (constant along time).
      keys: int64, unique per (sample, position): makes random selection reproducible across
        ranks and micro-batches.
      lag: int64, updates since the sequence was sampled (constant along time), for metrics.
      candidates: log-probabilities of further tokens at each position under the three policies,
        for ``centered`` and the metrics ``drift/*``; see `Candidates`.
      statistics: numbers measured over more tokens than this batch holds, by name; see
        `Method.statistics`.
      packing: True where a position holds a token of the packed sequences; set by `packed`.
      density: whether the log-probabilities are log-densities of continuous actions.

    Raises:
      ValueError: a field is no tensor of the shape and kind it needs; the message names it.

    Warns:
      UserWarning: a field of log-probabilities holds what is none; see `not_logarithms`. Only on a
        CPU: a GPU would have to be waited for. `trustclip.check` looks there.

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
    entropy_old: Tensor | None = field(default=None, kw_only=True)
    kl_old_new: Tensor | None = field(default=None, kw_only=True)
    kl_new_old: Tensor | None = field(default=None, kw_only=True)
    top_k_kl: Tensor | None = field(default=None, kw_only=True)
    top_k_tv: Tensor | None = field(default=None, kw_only=True)
    logp_rollout: Tensor | None = field(default=None, kw_only=True)
    logp_ref: Tensor | None = field(default=None, kw_only=True)
    groups: Tensor | None = field(default=None, kw_only=True)
    keys: Tensor | None = field(default=None, kw_only=True)
    lag: Tensor | None = field(default=None, kw_only=True)
    candidates: Candidates | None = field(default=None, kw_only=True)
    statistics: Mapping[str, Tensor] | None = field(default=None, kw_only=True)
    packing: Tensor | None = field(default=None, kw_only=True)
    density: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.logp, Tensor) or self.logp.dim() != 2:
            raise ValueError(f"`logp` must be [batch, time], got {described(self.logp)}.")
        for name in (*_REQUIRED, *SUPPLIERS):
            value = getattr(self, name)
            if name != "candidates" and (name in _REQUIRED or value is not None):
                check_tensor(name, value, _KINDS.get(name, "floating point"), self.logp.shape)
        # Set once, here: a frozen dataclass whose fields are wide, detached and masked already.
        values = {name: widen(v) for name in FLOATS if (v := getattr(self, name)) is not None}
        broken = torch.zeros_like(values["logp"])
        if (among := self.candidates) is not None:
            own = among.logp if isinstance(among, Candidates) else among
            if own is among or own.shape[:2] != self.logp.shape:
                raise ValueError(
                    f"`candidates` must be Candidates of {list(self.logp.shape)} tokens, got "
                    f"{described(own)}."
                )
            broken = choose(among.broken, torch.nan, 0.0, values["logp"])
            object.__setattr__(self, "candidates", among.prepared(self.mask))
        if among is not None or not all(map(seen_finite, values.values())):
            for name, value in values.items():
                known = value.masked_fill(value.isnan(), 0) if name == "logp_rollout" else value
                broken = broken + 0 * known.detach()  # 0 times what is not finite is NaN
            for name in ("logp", "logp_old"):
                # Added, not substituted: the NaN must reach the gradient of `logp`, too.
                values[name] = values[name] + broken.to(values[name])
        for name, value in values.items():
            tensor = value if name in _WITH_GRADIENT else value.detach()
            object.__setattr__(self, name, zero_masked(tensor, self.mask))
        if readable(self.logp) and (problem := self.not_logarithms()):
            warnings.warn(problem, stacklevel=3)

    @classmethod
    def packed(
        cls,
        logp: Tensor,
        logp_old: Tensor,
        advantages: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor,
        **optional: Any,
    ) -> Self:
        """The batch of sequences that stand one after another, without padding.

        They are padded here, once, because levels, aggregations, groups and metrics are then those
        of any other batch, to the last digit; the loss of a batch that is half padding takes some
        milliseconds of a step. `pack` leads back.

        Args:
          logp: as above, and so are the others. Shape [tokens].
          logp_old: Shape [tokens].
          advantages: Shape [tokens], or [batch] for one of each sequence.
          mask: True where the token counts, False for prompts, say; all when None. Shape [tokens].
          lengths: tokens of each sequence; ``cu_seqlens.diff()`` where there are cumulative ones,
            as kernels of attention take them. Integers, shape [batch].
          **optional: the other fields, each [tokens], or [batch] for one of each sequence;
            ``candidates`` are [1, tokens, candidates].

        Raises:
          ValueError: lengths that do not fit the tokens, a field of another shape.

        Example:
          >>> new, old = torch.tensor([0.4, 0.9, 0.5]).log(), torch.tensor([0.5, 0.3, 0.5]).log()
          >>> batch = TokenBatch.packed(
          ...     new, old, torch.tensor([1.0, -1.0]), lengths=torch.tensor([2, 1]))
          >>> batch.mask
          tensor([[ True,  True],
                  [ True, False]])
          >>> batch.pack(batch.log_ratio.exp())
          tensor([0.8000, 3.0000, 1.0000])
        """
        if not isinstance(logp, Tensor) or logp.dim() != 1:
            raise ValueError(f"packed `logp` must be [tokens], got {described(logp)}.")
        where, tokens = places(lengths, len(logp)), len(logp)
        mask = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask
        required = zip(_REQUIRED, (logp, logp_old, advantages, mask), strict=True)
        arguments = {**dict(required), **{k: v for k, v in optional.items() if v is not None}}
        apart = {k: arguments.pop(k) for k in ("statistics", "density") if k in arguments}
        if isinstance(candidates := arguments.pop("candidates", None), Candidates):
            candidates = candidates.map(lambda x: pad("candidates", x.squeeze(0), where, tokens))
        padded = {name: pad(name, value, where, tokens) for name, value in arguments.items()}
        return cls(**padded, **apart, packing=where.to(logp.device), candidates=candidates)

    def pack(self, x: Tensor) -> Tensor:
        """Values of each token, of a loss or of a gate, in the packed order. Shape [tokens].

        Raises:
          ValueError: the batch was not `packed`.
        """
        if self.packing is None:
            raise ValueError("this batch was not packed: see TokenBatch.packed.")
        return x[self.packing.to(x.device)]

    def not_logarithms(self) -> str | None:
        """A sentence about the first field of log-probabilities with a number above 0.5, or None.

        Rounding can make a number above 0, but none as large; a log-density can be.
        """
        for name in () if self.density else _LOGPS:
            value = getattr(self, name)
            if value is None or not value.numel():
                continue
            if value.detach().nan_to_num(nan=0.0).max().item() > _NO_ROUNDING:
                return (
                    f"`{name}` has numbers above {_NO_ROUNDING}, and a log-probability is at most "
                    "0. Pass minus the loss that `cross_entropy` gives, or `density=True` if these "
                    "are log-densities of continuous actions."
                )
        return None

    @property
    def finite(self) -> Tensor:
        """True for unmasked tokens with finite numbers only: the tokens statistics are over.

        bool. Shape [batch, time].
        """
        return self.mask & self.logp.isfinite()

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
        rollout = self.given("logp_rollout")
        return zero_masked(self.logp_old - rollout, ~rollout.isnan())

    def against(self, anchor: Anchor | Literal["ref"]) -> "TokenBatch":
        """The batch with ratios against the old policy (itself), the sampler or the reference.

        A token to which the sampler gave no log-probability is measured from the old policy.
        """
        if anchor == "old":
            return self
        other = self.given(f"logp_{anchor}")
        return self.having(logp_old=torch.where(other.isnan(), self.logp_old, other))

    def having(self, **prepared: Any) -> "TokenBatch":
        """The batch with other fields that are wide, detached and masked, as its own ones are."""
        batch = copy.copy(self)
        for name, value in prepared.items():
            object.__setattr__(batch, name, value)
        return batch

    def capped(self, ceiling: float | None) -> "TokenBatch":
        """The batch with no ratio above a ceiling: that of a token beyond it is the ceiling.

        Its gradient stays, with the ceiling as its weight; the same of candidates. None leaves the
        batch as it is.

        Example:
          >>> logp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
          >>> batch = TokenBatch(logp, torch.tensor([[-2.0, -9.0]]), torch.ones(1, 2), logp < 0)
          >>> batch.capped(20.0).log_ratio.exp().sum().backward()
          >>> logp.grad
          tensor([[ 2.7183, 20.0000]])
        """
        if ceiling is None:
            return self
        if not ceiling > 0:
            raise ValueError(f"`ceiling` must be a ratio above 0, got {ceiling!r}.")
        least, among = math.log(ceiling), self.candidates
        if among is not None:
            old = among.logp_old.maximum(among.logp.detach() - least)
            among = replace(among, logp_old=torch.where(among.valid, old, among.logp_old))
        beyond = (self.log_ratio.detach() - least).clamp(min=0)
        return replace(self, logp_old=self.logp_old + beyond, candidates=among)

    def require(self, *names: str) -> None:
        """Raise a ValueError that names the first missing field and what can supply it."""
        for name in names:
            self.given(name)

    def given(self, name: str) -> Any:
        """An optional field that is required here: a tensor, or the candidates.

        Raises:
          ValueError: it is missing; the message names it and what can supply it.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"this method needs `{name}` in the batch; it comes from {SUPPLIERS[name]}."
            )
        return value


def as_batch(batch: object) -> TokenBatch:
    """A batch, or a ValueError about what is none."""
    if isinstance(batch, TokenBatch):
        return batch
    raise ValueError(f"`batch` must be a trustclip.TokenBatch, got {described(batch)}.")


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The objective and the gate of a method on a batch.

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


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to minimise, its per-token parts, and numbers to log.

    Args:
      value: scalar; its gradient is that of minus the aggregated objective.
      per_token: minus the objective, before aggregation. Shape [batch, time].
      measure: makes `metrics`.
    """

    value: Tensor
    per_token: Tensor
    measure: Callable[[], Metrics]

    @cached_property
    def metrics(self) -> Metrics:
        """Name -> (sum, count), both scalars without gradient; made when they are first read.

        Add them over micro-batches and ranks, then divide.
        """
        return self.measure()
