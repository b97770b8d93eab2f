"""The exponential average of a policy's weights, after each update: the anchor of PPO-EWMA."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trustclip.constraints.base import Method
from trustclip.engines.limits import parts_of


def decay_of(method: Method) -> float | None:
    """The decay of the average that a method is anchored at; None where it is not.

    Raises:
      ValueError: two parts with averages of different decay.
    """
    parts = parts_of(method)
    decays = {part.decay for part in parts if getattr(part, "anchor", None) == "average"}  # type: ignore[attr-defined]
    if len(decays) > 1:
        raise ValueError(f"one average is kept, and parts of the method have decays {decays}.")
    return next(iter(decays), None)


class Average:
    r"""$\bar\theta_n = \sum_k \beta^{n-k}\theta_k / \sum_k \beta^{n-k}$ of the trained weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._trained = [weight for weight in model.parameters() if weight.requires_grad]
        self._decay = decay
        self._weights: list[Tensor] = []  # in float32 at least
        self._total, self._step = 0.0, -1

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Add the policy's weights after update ``step``, unless they were added already."""
        if step <= self._step:
            return
        now = [w.detach().to(torch.promote_types(w.dtype, torch.float32)) for w in self._trained]
        self._total, self._step = self._decay * self._total + 1, step
        for average, weight in zip(self._weights, now, strict=bool(self._weights)):
            average.lerp_(weight, 1 / self._total)
        self._weights = self._weights or [weight.clone() for weight in now]

    def recount(self) -> None:
        """Expect updates that are counted from 0 again, of the same weights."""
        self._step = -1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The average in the policy's place, without gradients, for the passes of the block."""
        originals = [weight.data for weight in self._trained]
        try:
            for weight, average in zip(self._trained, self._weights, strict=True):
                weight.data = average.to(weight.dtype)
            with torch.no_grad():
                yield
        finally:
            for weight, data in zip(self._trained, originals, strict=True):
                weight.data = data

    def state(self) -> list[Any]:
        """For a checkpoint."""
        return [self._step, self._total, self._weights]

    def restore(self, state: list[Any]) -> None:
        """Continue from `state`.

        Raises:
          ValueError: it is of other weights.
        """
        step, total, weights = state
        if weights and [w.shape for w in weights] != [w.shape for w in self._trained]:
            raise ValueError("the checkpoint's averaged weights are not of the weights in training")
        self._step, self._total = step, total
        self._weights = [x.to(w.device) for x, w in zip(weights, self._trained, strict=False)]
