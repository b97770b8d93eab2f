"""The library's methods on many seeds at once: one call for all, or one for each seed.

A method whose gate looks at tokens or sequences takes the answers of all seeds as one batch. One
with a state of the batch (statistics over many tokens, a threshold that adapts) is called for each
seed by itself, with its own object. So no seed's result depends on its neighbours.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Method, moves_candidates
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.candidates import Candidates
from trustclip.constraints.diagnostics import Window
from trustclip.constraints.loss import gradient
from trustclip_lab.tabular.training import SUPPLY as TABULAR

#: What the lab supplies to a method.
SUPPLY = replace(TABULAR, engine="the lab", fields=TABULAR.fields | {"lag"}, kl_gradient=False)

#: Fields of a `TokenBatch`, each with the seeds first, [seeds, n, time]; ``candidates`` are those
#: of all seeds in one, [seeds * n, time, vocabulary].
Fields = Mapping[str, Any]


def batch_of(fields: Fields, statistics: Mapping[str, Tensor] | None = None) -> TokenBatch:
    """The answers of all seeds as one batch. Every field [seeds * n, time]."""
    flat: dict[str, Any] = {
        name: value.flatten(0, 1) if isinstance(value, Tensor) else value
        for name, value in fields.items()
    }
    return TokenBatch(**flat, statistics=statistics)


def batches_of(fields: Fields) -> list[TokenBatch]:
    """A batch for each seed. Every field [n, time]."""
    seeds, n = fields["logp"].shape[:2]

    def of(value: Tensor | Candidates, s: int) -> Tensor | Candidates:
        if isinstance(value, Candidates):
            return value.map(lambda x: x[s * n : (s + 1) * n])
        return value[s : s + 1]

    return [batch_of({k: of(v, s) for k, v in fields.items()}) for s in range(seeds)]


class StackedMethod:
    """One method on a stack of seeds.

    Args:
      method: the method.
      seeds: size of the stack.

    Example:
      >>> import trustclip as tc
      >>> StackedMethod(tc.method("atr"), 4).together, StackedMethod(tc.method("m2po"), 4).together
      (True, False)
    """

    def __init__(self, method: Method, seeds: int) -> None:
        self.methods = [method] * seeds
        self.together = method.statistics_over is None and not adapts(method)
        self._adapts = adapts(method)
        self._statistics: list[Mapping[str, Tensor] | None] = [None] * seeds
        self._windows = [Window() for _ in range(seeds)] if self._adapts else []

    def begin(self, fields: Callable[[], Fields]) -> None:
        """Measure what the method reads of a whole generation at the old policy, if anything.

        Args:
          fields: the generation's, with ``logp`` of the old policy.
        """
        if self.methods[0].statistics_over == "generation":
            pairs = zip(self.methods, batches_of(fields()), strict=True)
            self._statistics = [method.statistics(batch) for method, batch in pairs]

    def objective(self, fields: Fields) -> Tensor:
        """Values whose gradient is the method's, through ``logp`` and ``candidates``.

        Returns:
          Shape [seeds, n, time].
        """
        if moves_candidates(self.methods[0]):
            objective = self.methods[0].surrogate(batch_of(fields)).objective
            return objective.view(fields["logp"].shape)
        c, _ = self.coefficient({**fields, "logp": fields["logp"].detach()})
        return c * fields["logp"]

    def coefficient(self, fields: Fields) -> tuple[Tensor, Tensor]:
        """`trustclip.coefficient` of each token, and which keep their gradient.

        Args:
          fields: of an update.

        Returns:
          Both of shape [seeds, n, time].
        """
        shape = fields["logp"].shape
        if self.together:
            c, surrogate = gradient(self.methods[0], batch_of(fields))
            return c.view(shape), surrogate.kept.view(shape)
        results = []
        for s, batch in enumerate(batches_of(fields)):
            batch = replace(batch, statistics=self._statistics[s])
            c, surrogate = gradient(self.methods[s], batch)
            if self._adapts:
                self._windows[s].add(batch, surrogate, self.methods[s])
            results.append((c, surrogate.kept))
        cs, kept = zip(*results, strict=True)
        return torch.stack(cs), torch.stack(kept)

    def finish(self) -> None:
        """End an update: thresholds that adapt do so."""
        if self._adapts:
            pairs = zip(self.methods, self._windows, strict=True)
            self.methods = [method.after(window.read()) for method, window in pairs]
            self._windows = [Window() for _ in self.methods]
