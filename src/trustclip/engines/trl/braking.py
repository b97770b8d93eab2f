"""The brake in TRL's loop: the learning rate of one optimizer step, scaled and put back."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.brake import Brake
from trustclip.constraints.masked import sequence_sum
from trustclip.constraints.sampler import has_rollout


class Braking(TrainerCallback):
    """Gathers the completions' weights over an update, and scales its step by their factor.

    The rate is put back right after the step, so that schedule, logs and checkpoints have the one
    of the schedule.
    """

    def __init__(self, brake: Brake) -> None:
        self.brake = brake
        self._log_weights: list[Tensor] = []  # of each micro-batch. [batch]
        self._factor = 1.0
        self._rates: list[float] = []

    @torch.no_grad()
    def add(self, batch: TokenBatch) -> None:
        """Add the completions of a micro-batch; nothing while the brake is off."""
        if not self.brake.on:
            return
        available = has_rollout(batch)  # [batch, time]
        # A completion with one unknown token has an unknown weight.
        complete = (available | ~batch.mask).all(dim=1) & available.any(dim=1)  # [batch]
        total = sequence_sum(batch.against("rollout").log_ratio, available)  # [batch]
        self._log_weights.append(torch.where(complete, total, torch.nan))

    def forget(self) -> None:
        """Drop the micro-batches of an abandoned update."""
        self._log_weights.clear()

    def measure(self, gather: Callable[[Tensor], Tensor]) -> float:
        """The factor of the update whose micro-batches are complete, which its step will have."""
        self._factor = self.brake.factor(gather(torch.cat(self._log_weights)))
        self._log_weights.clear()
        return self._factor

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self._factor

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
