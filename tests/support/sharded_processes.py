"""What tests of sharded training run under a launcher; the first rank tells the rest, as JSON.

``sharded_processes.py cuts FOLDER KIND``: a run, cut at every update and continued.
``sharded_processes.py train FOLDER KIND [SETTINGS]``: a run that is begun, or continued.
``sharded_processes.py full FOLDER KIND``: a run whose last rank has no more room from update 4 on.
``sharded_processes.py kill FOLDER KIND``: a run whose last rank is killed as it writes update 4.
``sharded_processes.py lag FOLDER KIND``: a run whose last rank is slow to write update 4.
KIND is ddp or fsdp2, with ``+async`` for checkpoints in the background, and ``+lora``
for adapters that train while the weights stay.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rank_program
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from durable_processes import SETTINGS
from durable_runs import cut_everywhere, grpo

from trustclip.train.durable import saving
from trustclip.train.durable.store import CheckpointError
from trustclip.train.models import save_model

#: Completions of a pass, over all ranks.
PASS = 8


def shard_on_cpus() -> None:
    """Let accelerate shard on CPUs.

    It has the code, and takes it on every device but this one: where FSDP was asked for on a CPU,
    its state says DDP. Only that word is put right; what shards is accelerate's own.
    """
    plain = AcceleratorState.__init__

    def said(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        plain(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = said  # type: ignore[method-assign]


def kind_settings(kind: str) -> dict[str, Any]:
    """Settings of `TrainingArguments` as users of TRL give them; `grpo` takes ``lora`` itself."""
    kind, *more = kind.split("+")
    settings: dict[str, Any] = {"save_async": "async" in more, "lora": "lora" in more}
    if kind == "fsdp2":
        shard_on_cpus()
        config = {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        settings |= {"fsdp": True, "fsdp_config": config, "head": "trl"}
    return settings


def settings_of(kind: str) -> dict[str, Any]:
    world = int(os.environ["WORLD_SIZE"])
    own = {"per_device_train_batch_size": PASS // world, "max_steps": 6, "save_total_limit": None}
    return {**SETTINGS, **own, **kind_settings(kind)}


def told_of(trainer: Any) -> dict[str, Any]:
    model = trainer.model_wrapped
    parameter = max(model.parameters(), key=lambda p: p.numel())
    return {
        "wrapper": type(model).__name__,
        "world": trainer.accelerator.num_processes,
        "part": getattr(parameter, "_local_tensor", parameter).numel() / max(parameter.numel(), 1),
        "norms": [r["grad_norm"] for r in trainer.state.log_history if "grad_norm" in r],
        "losses": [r["loss"] for r in trainer.state.log_history if "loss" in r],
    }


def cuts(folder: Path, kind: str) -> dict[str, Any]:
    settings = settings_of(kind)
    whole = grpo(folder / "whole", **settings)
    assert whole.train_durably()
    return {**told_of(whole), "different": cut_everywhere(whole, folder, settings)}


def train(folder: Path, kind: str, changes: str = "{}") -> dict[str, Any]:
    trainer = grpo(folder, **{**settings_of(kind), "logging_steps": 1, **json.loads(changes)})
    assert trainer.train_durably()
    save_model(trainer.model, trainer.processing_class, folder / "final", what="both")
    return told_of(trainer)


def on_write(kind: str, folder: Path, action: Any) -> dict[str, Any]:
    """A run in which the last rank does something before it writes its part of update 4."""
    trainer = grpo(folder, **settings_of(kind))
    last = trainer.accelerator.process_index == trainer.accelerator.num_processes - 1
    plain = saving.Content.write

    def write(self: Any, part: Path, ranks: Any) -> Any:
        if last and part.name.endswith("000004"):
            action()
        return plain(self, part, ranks)

    saving.Content.write = write  # type: ignore[method-assign]
    try:
        complete, message = trainer.train_durably(), ""
    except CheckpointError as error:
        complete, message = False, str(error)
    messages: list[Any] = [None] * trainer.accelerator.num_processes
    torch.distributed.all_gather_object(messages, message)
    return {"complete": complete, "messages": messages}


def no_room() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def commands(folder: Path, rest: list[str]) -> dict[str, Callable[[], Any]]:
    return {
        "cuts": lambda: cuts(folder, *rest),
        "train": lambda: train(folder, *rest),
        "full": lambda: on_write(rest[0], folder, no_room),
        "kill": lambda: on_write(rest[0], folder, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        "lag": lambda: on_write(rest[0], folder, lambda: time.sleep(5)),
    }


if __name__ == "__main__":
    rank_program.run(commands)
