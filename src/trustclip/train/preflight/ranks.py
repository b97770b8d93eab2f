"""The ranks that a launcher really started, compared with those requested: `trustclip doctor`.

Launchers fall back silently: on a CPU, FSDP becomes DDP, and ``srun`` alone starts processes that
do not form one group. Each rank looks at itself, and the first one reports for all.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trustclip.train.settings.stages import RLStage

#: Environment variables by which Accelerate records the requested model wrapper.
_WRAPPERS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}


@dataclass(frozen=True)
class World:
    """The processes that a launcher started."""

    devices: Sequence[str]  # host and device of each rank, in order
    backend: str = "no process group"  # of collective calls
    wrapper: str = ""  # class that the model would be wrapped in; empty for none
    asked_ranks: int = 1  # that the environment speaks of
    asked_wrapper: str = ""  # "FSDP", "DeepSpeed" or empty


def inspect_ranks(trl: Mapping[str, Any]) -> World:
    """Join the other ranks and describe what was started. Collective: every rank must call it.

    Of the settings of TRL, ``fsdp`` and ``deepspeed`` are read.
    """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin, gather_object

    if trl.get("fsdp"):
        os.environ["ACCELERATE_USE_FSDP"] = "true"  # as TrainingArguments does
    config = trl.get("deepspeed")
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config) if config else None,
    )
    variables = ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
    asked = [int(os.environ[name]) for name in variables if os.environ.get(name, "").isdecimal()]
    true = ("1", "true")
    wrappers = [name for key, name in _WRAPPERS.items() if os.environ.get(key, "").lower() in true]
    joined = accelerator.use_distributed and torch.distributed.is_initialized()
    device = "cpu" if accelerator.device.type == "cpu" else str(accelerator.device)
    return World(
        gather_object([f"{socket.gethostname()} {device}"]),
        torch.distributed.get_backend() if joined else "no process group",
        _wrapper(accelerator),
        max(asked, default=1),
        "".join(wrappers[-1:]),
    )


def _wrapper(accelerator: Any) -> str:
    import torch

    if accelerator.state.deepspeed_plugin:
        return f"DeepSpeed, ZeRO-{accelerator.state.deepspeed_plugin.zero_stage}"
    if accelerator.distributed_type == "FSDP":  # cannot be tried without an optimizer
        return f"FSDP{accelerator.state.fsdp_plugin.fsdp_version}"
    plain = torch.nn.Linear(2, 2)
    wrapped = accelerator.prepare(plain)
    return "" if wrapped is plain else type(wrapped).__name__


def describe(world: World, stage: RLStage) -> Iterator[tuple[str, str]]:
    """Describe what would really run, as labels with a line of text each."""
    ranks, schedule = len(world.devices), stage.schedule
    yield "ranks", f"{ranks} ({world.backend})"
    for rank, device in enumerate(world.devices):
        yield f"rank {rank}", device
    yield "wrapper", world.wrapper or "none: the model itself"
    batch = stage.per_device_train_batch_size * ranks
    yield "an update", f"{batch * schedule.gradient_accumulation_steps} completions of all ranks"
    prompts = stage.samples * ranks / stage.num_generations
    yield "a generation", f"{stage.samples * ranks} completions of {prompts:g} prompts"
    yield "schedule", f"updates per generation: {schedule.updates_per_generation:g}"


def errors(world: World, stage: RLStage) -> Iterator[str]:
    """Settings that these ranks would fail with or ignore, each with the remedy."""
    ranks, schedule = len(world.devices), stage.schedule
    if world.asked_ranks > ranks:
        yield (
            f"{world.asked_ranks} ranks were asked for and {ranks} joined one group: srun alone "
            "forms none, nor does accelerate launch on a CPU without mpirun. Use `torchrun "
            f"--nproc-per-node {world.asked_ranks} -m trustclip ...`."
        )
    if not world.wrapper.startswith(world.asked_wrapper):
        yield (
            f"{world.asked_wrapper} was asked for and the model would be in "
            f"{world.wrapper or 'no wrapper'}: every rank would hold the whole model and optimizer."
        )
    for device, count in Counter(world.devices).items():
        if count > 1 and not device.endswith("cpu"):
            yield f"{count} ranks share {device}: start one process per device."
    passes = schedule.steps_per_generation * schedule.num_iterations
    update = schedule.gradient_accumulation_steps
    if passes % update and update % passes:
        yield (
            f"steps_per_generation x num_iterations = {passes} micro-batches and "
            f"gradient_accumulation_steps = {update}: neither divides the other, so some updates "
            "would mix samples of two policies."
        )
    if stage.save_steps and world.wrapper == "FSDP1":
        yield "checkpoints cannot be kept under FSDP1; set fsdp_version to 2, or save_steps to 0."
