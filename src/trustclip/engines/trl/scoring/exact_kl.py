"""Divergences from the sampling policy: what to store of it, and how they are computed.

A TRL input dictionary carries the old policy's part under the names of `HIDDEN` and `TOP_K`, row by
row, so that it is split, shuffled and checkpointed like any other input.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trustclip.constraints.base import Method, top_k
from trustclip.constraints.divergences import categorical_kl, categorical_tv
from trustclip.constraints.thresholds import least_kl
from trustclip.engines.trl.scoring import hidden
from trustclip.engines.trl.scoring.forward import Request
from trustclip.head import ORDERS, Head, Order, Scores, bregman_kl, exact_kl, score, topk
from trustclip.head.exact import RESOLVES
from trustclip.head.topk import logp_of, with_other

#: Names among TRL's inputs of an old policy's `Evidence`.
HIDDEN = ("old_hidden", "old_log_partition", "old_mean")

#: Names among TRL's inputs of an old policy's likeliest tokens, and their log-probabilities.
TOP_K = ("old_top_k_ids", "old_top_k_logp")

#: Divergences over the likeliest tokens, by their field of `TokenBatch`.
_OF_TOP_K = {"top_k_kl": categorical_kl, "top_k_tv": categorical_tv}


class Evidence(NamedTuple):
    """Output of one policy's pass from which divergences at completion tokens are computed."""

    hidden: Tensor  # last hidden states. [batch, time, hidden]
    log_partition: Tensor | None = None  # None if TRL's head was used. [batch, time]
    mean: Tensor | None = None  # expected row of the head, if requested. [batch, time, hidden]

    def at(self, chosen: Tensor) -> "Evidence":
        """The evidence at selected completions or tokens."""
        return Evidence(*(None if x is None else x[chosen] for x in self))  # type: ignore[arg-type]


class Passes(NamedTuple):
    """Passes recorded by `KLWatch.watching`: hidden states, and the scores of trustclip's head."""

    states: list[Tensor]
    scores: list[Scores]

    def of_completions(self, length: int) -> Evidence:
        """The evidence of the last ``length`` tokens of each row, over all passes."""
        tensors = (hidden.of_completions(self.states, length),)
        for parts in zip(*((s.log_partition, s.mean) for s in self.scores), strict=True):
            if parts[0] is not None:
                tensors += (torch.cat([part[:, -length:] for part in parts]),)
        return Evidence(*tensors)


class KLWatch:
    """Per-token divergences over the vocabulary, from the policy that sampled the token.

    Computed for a method that requires them, and in every n-th generation for the log. Exact KL
    costs no extra product if trustclip's head is used and frozen: both passes then produce what
    `bregman_kl` needs. Otherwise `exact_kl` recomputes the logits of both policies from their
    hidden states. Top-K divergences keep only the old policy's likeliest tokens.

    Args:
      model: causal language model, or an adapter around one.
      method: the constraint.
      temperature: that of sampling.
      request: what trustclip's head in the model has to compute; None if TRL's head is used.
      every: log exact KL in every n-th generation; 0 for never.
      updates: optimizer updates per generation.
      autocast: mixed precision of the passes, ``"no"``, ``"bf16"`` or ``"fp16"``.

    Raises:
      ValueError: the logits of this model are not its head times its hidden states, it has too
        few tokens for the top K, or exact KL needs what its head leaves out.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        temperature: float,
        request: Request | None,
        *,
        every: int = 0,
        updates: float = 1.0,
        autocast: str = "no",
    ) -> None:
        orders: list[Order] = [o for o in ORDERS if f"kl_{o}" in method.requires]
        self._over_top_k = [name for name in _OF_TOP_K if name in method.requires]
        self._required = bool(orders or self._over_top_k)
        if every and "old_new" not in orders:
            orders.append("old_new")
        self._orders, self._every, self._updates = orders, every, updates
        self._k = (top_k(method) or 1) if self._over_top_k else 0
        self._temperature = temperature
        #: Weight of the head of the policy that sampled, where training changes it.
        self.old_head: Tensor | None = None
        self._request = None
        if orders or self._over_top_k:
            hidden.check_head(model)
            head = hidden.head(model)
            if self._k + 2 > head.out_features:
                raise ValueError(f"k={self._k} needs a vocabulary of more than {self._k + 1}.")
            if hidden.logit_changes(model)[1] is None and not any(
                p.requires_grad for p in head.parameters()
            ):
                # With a frozen head the passes yield all that is needed.
                self._request = None if self._too_fine(method, head.weight, autocast) else request

    @staticmethod
    def _too_fine(method: Method, weight: Tensor, autocast: str) -> bool:
        """Whether a threshold is below the resolution of `bregman_kl`, which is warned of."""
        modes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = modes.get(autocast, weight.dtype)
        resolved, least = RESOLVES.get(dtype, 0.0), least_kl(method)
        if least is None or least >= resolved:
            return False
        warnings.warn(
            f"the threshold of {method.name!r}, {least:g} nats, is below what a KL divergence from "
            f"the head's statistics resolves in {str(dtype).partition('.')[2]} ({resolved:g}): it "
            "is computed from the logits of both policies instead, at two products more.",
            stacklevel=3,
        )
        return True

    def wants_generation(self, step: int) -> bool:
        """Whether the old policy's pass over a generation after ``step`` updates is needed."""
        due = self._every > 0 and int(step / self._updates) % self._every == 0
        return self._required or due

    def wants(self, inputs: dict[str, Any]) -> bool:
        """Whether these inputs hold data of the old policy to compare with."""
        return HIDDEN[0] in inputs or TOP_K[0] in inputs

    @contextlib.contextmanager
    def watching(self, model: nn.Module, policy: Literal["old", "new"]) -> Iterator[Passes]:
        """Record the forward passes in the block, which are those of ``policy``."""
        passes = Passes([], [])
        with hidden.captured(model, passes.states):
            if self._request is None:
                yield passes
                return
            self._request.scores = passes.scores
            self._request.mean = any(order.startswith(policy) for order in self._orders)
            try:
                yield passes
            finally:
                self._request.scores, self._request.mean = None, False

    def keep(
        self, model: nn.Module, old: Evidence, sampled: Tensor, logp_old: Tensor
    ) -> dict[str, Tensor]:
        """The entries to add to TRL's inputs about the policy that sampled, given its evidence.

        ``sampled`` are ids of the completions, ``logp_old`` their log-probabilities. [batch, time]
        """
        entries = {}
        if self._orders:
            self.old_head = hidden.trained_head(model)
            evidence = zip(HIDDEN, old, strict=True)
            entries |= {name: part for name, part in evidence if part is not None}
        if self._over_top_k:
            ids, logp = self._top_k(model, old.hidden, sampled.flatten(), logp_old.flatten())
            rows = (*sampled.shape, self._k + 1)
            entries |= zip(TOP_K, (ids.view(rows), logp.view(rows)), strict=True)
        return entries

    def _top_k(
        self, model: nn.Module, states: Tensor, sampled: Tensor, logp_old: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Ids of the likeliest and the sampled token, and log-probabilities. [tokens, k + 1]."""
        ids, logp = topk(states.flatten(0, 1), self._head(model), self._k + 1)
        # Last column: the sampled token, or the next likeliest where that is among the top k.
        among = (ids[:, :-1] == sampled[:, None]).any(dim=1)  # [tokens]
        ids[:, -1] = torch.where(among, ids[:, -1], sampled)
        logp[:, -1] = torch.where(among, logp[:, -1], logp_old.to(logp.dtype))
        return ids, logp

    @torch.no_grad()
    def divergences(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        mask: Tensor,
        new: Evidence | None,
        rows: Tensor | None,
    ) -> dict[str, Tensor]:
        """Divergences in nats of the unmasked tokens that were scored, by field; 0 elsewhere.

        ``new`` is the evidence of the completions in ``rows``; without it the policy is still the
        one that sampled. ``mask`` and each divergence are [batch, time].
        """
        if not (self._required or self.wants(inputs)):
            return {}
        names = [*(f"kl_{order}" for order in self._orders), *self._over_top_k]
        zeros = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        if new is None:
            return dict.fromkeys(names, zeros)
        own = mask if rows is None else mask[rows]  # [scored completions, time]
        scored = mask if rows is None else torch.zeros_like(mask).index_copy(0, rows, own)
        given = {name: inputs.get(name) for name in (*HIDDEN, *TOP_K, "completion_ids")}
        chosen = {n: None if x is None else x[scored] for n, x in given.items()}  # [tokens, ...]
        at_tokens = new.at(own)
        old = Evidence(*(chosen[name] for name in HIDDEN))  # type: ignore[arg-type]
        values = {f"kl_{o}": self._exact(model, at_tokens, old, o) for o in self._orders}
        if self._over_top_k:
            ids: Any = chosen[TOP_K[0]]
            logp: Any = chosen[TOP_K[1]]
            head, log_partition = self._head(model), at_tokens.log_partition
            if log_partition is None:
                sampled: Any = chosen["completion_ids"]
                log_partition = score(at_tokens.hidden, head, sampled, entropy=False).log_partition
            now = logp_of(at_tokens.hidden, log_partition, head, ids)
            for name in self._over_top_k:
                values[name] = _OF_TOP_K[name](with_other(logp), with_other(now))
        return {name: zeros.masked_scatter(scored, x.float()) for name, x in values.items()}

    def _exact(self, model: nn.Module, new: Evidence, old: Evidence, order: Order) -> Tensor:
        """Exact KL divergence of each token. Shape [tokens]."""
        if self._request is not None:
            # A model's factor is one over a temperature.
            temperature = self._temperature / hidden.logit_changes(model)[0]
            return bregman_kl(new.hidden, new, old.hidden, old, order, temperature=temperature)
        return exact_kl(new.hidden, old.hidden, self._head(model), self.old_head, order)

    def _head(self, model: nn.Module) -> Head:
        return hidden.head_of(model, self._temperature)
