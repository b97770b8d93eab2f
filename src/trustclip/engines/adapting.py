"""The part of a trainer that lets a method's thresholds adapt, update by update."""

from typing import Any

from torch import Tensor

from trustclip import diagnostics
from trustclip.batch import Surrogate, TokenBatch
from trustclip.engines.durable import Durable
from trustclip.method import Method


class Adapting(Durable):
    """`Durable`, and after each update the method is what `Method.after` answers.

    Every rank gives it the same metrics, those of all ranks, and so has the same thresholds.
    """

    method: Method
    _sum: Any
    _update: diagnostics.Window | None = None

    def _measure(self, batch: TokenBatch, surrogate: Surrogate) -> None:
        """Take in a micro-batch that is trained on."""
        if self.method.adapts and self.model.training:
            self._update = self._update or diagnostics.Window()
            self._update.add(batch, surrogate)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self._update is not None and self.accelerator.sync_gradients:
            if metrics := self._update.read(self._sum):
                self.method = self.method.after(metrics)
            self._update = None
        return loss

    def _progress(self) -> dict[str, Any]:
        return {**super()._progress(), "method": self.method.state()}

    def _restore(self, progress: dict[str, Any]) -> None:
        super()._restore(progress)
        self.method = self.method.restored(progress["method"])
