"""Exact KL divergence from the policy that sampled: what to keep of it, and the sum.

A TRL input dictionary carries the old policy's part under the names of `KEPT`, row by row, so that
it is split, shuffled and checkpointed like any other input.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trustclip.engines import hidden
from trustclip.engines.scoring import Asked
from trustclip.engines.skipping import spread
from trustclip.head import ORDERS, Order, Scores, bregman_kl, exact_kl
from trustclip.method import Method

#: Names of an old policy's `Evidence` among TRL's inputs.
KEPT = ("old_hidden", "old_log_partition", "old_mean")


class Evidence(NamedTuple):
    """What a pass of one policy leaves for divergences at the tokens of completions.

    Args:
      hidden: last hidden states. Shape [batch, time, hidden].
      log_partition: of each distribution; None where our head did not score. Shape [batch, time].
      mean: expected row of the head's weight, where it was asked for. Shape [batch, time, hidden].
    """

    hidden: Tensor
    log_partition: Tensor | None = None
    mean: Tensor | None = None

    def at(self, chosen: Tensor) -> "Evidence":
        """That of some completions, or of some tokens."""
        return Evidence(*(None if x is None else x[chosen] for x in self))  # type: ignore[arg-type]


class Watched(NamedTuple):
    """Passes seen by `ExactKL.watching`: hidden states, and what our head found besides."""

    states: list[Tensor]
    scores: list[Scores]

    def of_completions(self, length: int) -> Evidence:
        """The evidence of the last ``length`` tokens of each row, of all passes together."""
        found = (hidden.of_completions(self.states, length),)
        for parts in zip(*(each[2:] for each in self.scores), strict=True):
            if parts[0] is not None:
                found += (torch.cat([part[:, -length:] for part in parts]),)
        return Evidence(*found)


class ExactKL:
    """Exact KL divergences between the policy in training and the one that sampled.

    Where our head scores and is frozen they cost no product: both passes leave what `bregman_kl`
    needs. Otherwise `exact_kl` makes the logits of both policies again, from their hidden states.

    Args:
      model: causal language model, or an adapter around one.
      orders: which: ``"old_new"``, ``"new_old"``.
      temperature: that of sampling.
      asked: what our head in the model answers to; None where it is not there.
    """

    def __init__(
        self, model: nn.Module, orders: Sequence[Order], temperature: float, asked: Asked | None
    ) -> None:
        self._orders = orders
        self._temperature = temperature
        frozen = not any(p.requires_grad for p in hidden.head(model).parameters())
        self._asked = asked if frozen else None

    @contextlib.contextmanager
    def watching(self, model: nn.Module, policy: Literal["old", "new"]) -> Iterator[Watched]:
        """Collect what every pass in the block leaves; ``policy`` is the one that passes."""
        watched = Watched([], [])
        with hidden.captured(model, watched.states):
            if self._asked is None:
                yield watched
                return
            self._asked.scores = watched.scores
            self._asked.mean = any(order.startswith(policy) for order in self._orders)
            try:
                yield watched
            finally:
                self._asked.scores, self._asked.mean = None, False

    def none(self, mask: Tensor) -> dict[str, Tensor]:
        """Divergences of a policy from itself: 0. Shape [batch, time]."""
        zeros = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        return {f"kl_{order}": zeros for order in self._orders}

    def of(
        self, model: nn.Module, new: Evidence, old: Evidence, old_head: Tensor | None, mask: Tensor
    ) -> dict[str, Tensor]:
        """Each divergence in nats at the unmasked tokens, 0 elsewhere. Shape [batch, time].

        Args:
          model: the policy in training.
          new: its evidence.
          old: that of the policy that sampled.
          old_head: weight of that one's head, None if frozen. Shape [vocabulary, hidden].
          mask: tokens that count. Shape [batch, time].

        Returns:
          ``"kl_old_new"``, ``"kl_new_old"`` -> divergence.
        """
        new, old = new.at(mask), old.at(mask)  # token by token
        found = self.none(mask)
        for order in self._orders:
            if self._asked is not None:
                values = bregman_kl(
                    new.hidden, new, old.hidden, old, order, temperature=self._temperature
                )
            else:
                head = hidden.head(model)
                values = exact_kl(
                    new.hidden, old.hidden, hidden.whole(head.weight), old_head, order,
                    bias=hidden.whole(head.bias), temperature=self._temperature,
                )  # fmt: skip
            name = f"kl_{order}"
            found[name] = found[name].masked_scatter(mask, values.float())
        return found


class WatchesKL:
    """The part of a trainer that knows the exact KL divergence of each token, where it is wanted.

    That is for a method that needs it, and in every `exact_kl_every`-th generation for the record.
    """

    method: Method
    args: Any
    state: Any
    model: Any
    accelerator: Any
    temperature: float
    _unwrapped: Any
    _inputs: dict[str, Any] | None  # of the loss being computed, if one is
    _scored: list[tuple[Tensor, Evidence | None]] | None  # while generating
    _exact: ExactKL | None = None
    _old_head: Tensor | None = None

    def _prepare_exact(self, asked: Asked | None) -> None:
        """Find out which divergences are wanted; ``asked`` is what our head answers to.

        Raises:
          ValueError: the logits of this model are not its head times its hidden states.
        """
        orders: list[Order] = [o for o in ORDERS if f"kl_{o}" in self.method.requires]
        self._needs_kl = bool(orders)
        if self.args.exact_kl_every and "old_new" not in orders:
            orders.append("old_new")
        if orders:
            hidden.check_head(self._unwrapped())
            self._exact = ExactKL(self._unwrapped(), orders, self.temperature, asked)

    def _watched(self) -> Literal["old", "new"] | None:
        """Whose divergence the coming pass is for, if it is."""
        if self._scored is not None:
            return "old" if self._needs_kl or self._examined else None
        inputs = self._inputs or {}
        return "new" if KEPT[0] in inputs and not self._on_policy(inputs) else None

    @property
    def _examined(self) -> bool:
        """Whether the divergences of the coming generation go on record."""
        every, updates = self.args.exact_kl_every, self.args.schedule().updates_per_generation
        return every > 0 and int(self.state.global_step / updates) % every == 0

    def _on_policy(self, inputs: dict[str, Any]) -> bool:
        """Whether all completions are samples of the policy as it is, so that each ratio is 1."""
        generated = inputs.get("generated")
        return generated is not None and bool((generated == self.state.global_step).all())

    @contextlib.contextmanager
    def _watching(
        self, model: nn.Module, policy: Literal["old", "new"] | None
    ) -> Iterator[Watched | None]:
        """Collect what passes of this policy leave, if any is wanted."""
        if self._exact is None or policy is None:
            yield None
            return
        with self._exact.watching(model, policy) as seen:
            yield seen

    def _kept(self, evidence: Evidence | None) -> dict[str, Tensor]:
        """What TRL's inputs carry of the policy that has sampled."""
        if evidence is None:
            return {}
        self._old_head = hidden.trained_head(self.accelerator.unwrap_model(self.model))
        parts = zip(KEPT, evidence, strict=True)
        return {name: part for name, part in parts if part is not None}

    def _kl(
        self, inputs: dict[str, Any], mask: Tensor, new: Evidence | None, rows: Tensor | None
    ) -> dict[str, Tensor]:
        """The divergences of the tokens that count and were scored, 0 of all others.

        Where nothing was watched, the policy is still the one that sampled.

        Args:
          inputs: of TRL's loss.
          mask: tokens that count. Shape [batch, time].
          new: evidence of the completions that were scored.
          rows: which those are, None for all.
        """
        if self._exact is None or not (self._needs_kl or KEPT[0] in inputs):
            return {}
        none = self._exact.none(mask)
        if new is None:
            return none
        model = self.accelerator.unwrap_model(self.model)
        old = Evidence(*(inputs.get(name) for name in KEPT))  # type: ignore[arg-type]
        if rows is None:
            return self._exact.of(model, new, old, self._old_head, mask)
        found = self._exact.of(model, new, old.at(rows), self._old_head, mask[rows])
        return {name: spread(kl, rows, none[name]) for name, kl in found.items()}
