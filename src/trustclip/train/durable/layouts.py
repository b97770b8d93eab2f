"""Where training holds weights and optimizer: whole on each rank, or in parts over the ranks.

Every rank holds everything, and the first one writes it (one process, DDP); or every rank holds a
part of each tensor (FSDP2). Trainers wrap their model when training begins, so each call looks.
"""

from pathlib import Path
from typing import Any

import torch

from trustclip.support.schemas import alike
from trustclip.train.durable import shards, weights
from trustclip.train.durable.saving import Content


def put(trainer: Any, content: Content) -> dict[str, Any]:
    """Add them to what this rank stores; returns their part of the state ``optimizer``."""
    model, optimizer = trainer._unwrapped(), trainer.optimizer
    if shards.sharded(model):
        tensors, names = weights.stored(model), trainer._optimized()
        content.shards, description = shards.named_tensors(tensors, names, optimizer)
        return {"described": description}
    if not trainer.accelerator.is_main_process:
        return {}
    content.tensors |= weights.files(model)
    return {"optimizer": optimizer.state_dict()}


def load_weights(trainer: Any, folder: Path) -> None:
    """Restore the weights, in place."""
    model = trainer._unwrapped()
    if (folder / shards.SHARDS).is_dir():
        tensors = weights.stored(model).items()
        with torch.no_grad():
            shards.load(folder, {shards.of_weight(n): t.detach() for n, t in tensors})
    elif shards.sharded(model):
        raise ValueError(
            f"{folder} cannot be continued with sharded weights: one process or DDP wrote it. "
            "Continue it there, or give that folder as the model of a new run."
        )
    else:
        weights.load(model, folder)


def load_optimizer(trainer: Any, folder: Path, stored: dict[str, Any]) -> None:
    """Restore the optimizer from what `put` returned and the files."""
    optimizer = trainer.optimizer
    if "described" in stored:
        names = trainer._optimized()
        shards.load(folder, shards.make_room(stored["described"], names, optimizer))
        return
    # As `load_state_dict`, without its cast of every state to the type of the parameter.
    whole = stored["optimizer"]
    alike(whole["param_groups"], optimizer.state_dict()["param_groups"], "param_groups")
    optimizer.load_state_dict(whole)
    for group, own in zip(whole["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(group["params"], own["params"], strict=True):
            for name, value in whole["state"].get(number, {}).items():
                now = optimizer.state[parameter][name]
                if isinstance(value, torch.Tensor) and now.dtype != value.dtype:
                    optimizer.state[parameter][name] = value.to(now.device)
