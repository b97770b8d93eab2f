"""Where training holds weights and optimizer: whole on each rank, or in parts over the ranks."""

from pathlib import Path
from typing import Any

import torch

from trustclip.support.schemas import alike
from trustclip.train.durable import shards, weights
from trustclip.train.durable.saving import Content


def layout_of(trainer: Any) -> "Whole":
    """The current layout of a trainer: trainers wrap their model when training begins."""
    return Sharded(trainer) if shards.sharded(trainer._unwrapped()) else Whole(trainer)


class Whole:
    """Every rank holds everything, and the first one writes it: one process, DDP."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def put(self, content: Content) -> dict[str, Any]:
        """Add them to what this rank stores; returns their part of the state ``optimizer``."""
        trainer = self._trainer
        if not trainer.accelerator.is_main_process:
            return {}
        content.tensors |= weights.files(trainer._unwrapped())
        return {"optimizer": trainer.optimizer.state_dict()}

    def load_weights(self, folder: Path) -> None:
        """Restore the weights, in place."""
        model = self._trainer._unwrapped()
        if (folder / shards.SHARDS).is_dir():
            tensors = weights.stored(model).items()
            with torch.no_grad():
                shards.load(folder, {shards.of_weight(n): t.detach() for n, t in tensors})
        else:
            weights.load(model, folder)

    def load_optimizer(self, folder: Path, stored: dict[str, Any]) -> None:
        """Restore the optimizer from what `put` returned and the files."""
        optimizer = self._trainer.optimizer
        if "described" in stored:
            names = self._trainer._optimized()
            shards.load(folder, shards.make_room(stored["described"], names, optimizer))
        else:
            _load_optimizer(optimizer, stored["optimizer"])


class Sharded(Whole):
    """Every rank holds a part of each tensor: FSDP2."""

    def put(self, content: Content) -> dict[str, Any]:
        trainer = self._trainer
        tensors = weights.stored(trainer._unwrapped())
        names = trainer._optimized()
        content.shards, description = shards.named_tensors(tensors, names, trainer.optimizer)
        return {"described": description}

    def load_weights(self, folder: Path) -> None:
        shards.refuse_whole(folder)
        super().load_weights(folder)


def _load_optimizer(optimizer: Any, stored: dict[str, Any]) -> None:
    """`load_state_dict` without its cast of every state to the type of the parameter."""
    alike(stored["param_groups"], optimizer.state_dict()["param_groups"], "param_groups")
    optimizer.load_state_dict(stored)
    for group, own in zip(stored["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(group["params"], own["params"], strict=True):
            for name, value in stored["state"].get(number, {}).items():
                now = optimizer.state[parameter][name]
                if isinstance(value, torch.Tensor) and now.dtype != value.dtype:
                    optimizer.state[parameter][name] = value.to(now.device)
