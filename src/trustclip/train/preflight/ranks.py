"""The ranks that a launcher really started, compared with those requested: `trustclip doctor`.

Launchers and wrappers fall back silently: `accelerate launch --cpu` starts one process whatever
number it was given, and FSDP on a CPU is DDP. Here each rank inspects itself, the first one
reports, and any difference from the request is an error.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.schedule import Schedule
from trustclip.engines.remarks import Remark

#: Environment variables by which Accelerate records the requested model wrapper.
_WRAPPERS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}


@dataclass(frozen=True)
class World:
    """The processes that a launcher started."""

    devices: Sequence[str]  # host and device of each rank, in order
    backend: str | None = None  # of collective calls, None for a single process
    wrapper: str = ""  # class that the model would be wrapped in; empty for none
    asked_ranks: int | None = None  # that the launcher was asked for, None where unknown
    asked_wrapper: str = ""  # "FSDP", "DeepSpeed" or empty
    zero_stage: int = 0  # of DeepSpeed

    @property
    def ranks(self) -> int:
        return len(self.devices)

    @property
    def on_cpu(self) -> bool:
        return all(device.endswith("cpu") for device in self.devices)


@dataclass(frozen=True)
class Load:
    """The work of each rank, in TRL's terms."""

    method: Method
    batch: int  # per_device_train_batch_size, completions per micro-batch and rank
    num_generations: int  # completions per prompt
    schedule: Schedule
    vllm: str = ""  # "colocate", "server" or empty
    saves: bool = False  # whether checkpoints are to be kept


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
    wrappers = [
        name
        for variable, name in _WRAPPERS.items()
        if os.environ.get(variable, "").lower() in ("1", "true")
    ]
    deepspeed = accelerator.state.deepspeed_plugin
    backend = None
    if accelerator.use_distributed and torch.distributed.is_initialized():
        backend = torch.distributed.get_backend()
    device = "cpu" if accelerator.device.type == "cpu" else str(accelerator.device)
    return World(
        gather_object([f"{socket.gethostname()} {device}"]),
        backend,
        "DeepSpeedEngine" if deepspeed else _wrapper(accelerator),
        asked_ranks(_parents(), os.environ),
        "".join(wrappers[-1:]),
        deepspeed.zero_stage if deepspeed else 0,
    )


def _wrapper(accelerator: Any) -> str:
    import torch

    if accelerator.distributed_type == "FSDP":  # cannot be tried without an optimizer
        return f"FSDP{accelerator.state.fsdp_plugin.fsdp_version}"
    plain = torch.nn.Linear(2, 2)
    wrapped = accelerator.prepare(plain)
    return "" if wrapped is plain else type(wrapped).__name__


def _parents() -> list[list[str]]:
    """Command lines of the processes above this one, nearest first."""
    import psutil

    lines = []
    for process in psutil.Process().parents():
        try:
            lines.append(process.cmdline())
        except psutil.Error:
            break
    return lines


def asked_ranks(parents: Sequence[Sequence[str]], environment: Mapping[str, str]) -> int | None:
    """Number of ranks that a launcher was asked for, or None where unknown.

    Read in the command lines of the processes above this one, and in its environment.
    """
    for line in parents:
        names = [os.path.basename(part) for part in line]
        if "launch" in names and any(name.startswith("accelerate") for name in names):
            return _of_accelerate(list(line[names.index("launch") + 1 :]))
    for variable in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if environment.get(variable, "").isdecimal():
            return int(environment[variable])
    return None


def _of_accelerate(arguments: list[str]) -> int | None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    options, _ = launch_command_parser().parse_known_args(arguments)
    if options.num_processes is not None or options.config_file is None:
        return options.num_processes
    return getattr(load_config_from_file(options.config_file), "num_processes", None)


def describe(world: World, load: Load) -> Iterator[tuple[str, str]]:
    """Describe what would really run, as labels with a line of text each."""
    backend = world.backend or "no process group"
    yield "ranks", f"{world.ranks} ({backend})"
    for rank, device in enumerate(world.devices):
        yield f"rank {rank}", device
    stage = f", ZeRO-{world.zero_stage}" if world.zero_stage else ""
    yield "wrapper", (world.wrapper or "none: the model itself") + stage
    yield "samples", _sampler(world, load)
    yield "head", _head(world)
    update = load.batch * world.ranks * load.schedule.gradient_accumulation_steps
    yield "an update", f"{update} completions of all ranks"
    generation = _generation(world, load)
    prompts = generation / load.num_generations
    yield "a generation", f"{generation} completions of {prompts:g} prompts"
    yield "schedule", f"{load.schedule.updates_per_generation:g} updates per generation"


def _generation(world: World, load: Load) -> int:
    return load.batch * world.ranks * load.schedule.steps_per_generation


def _sampler(world: World, load: Load) -> str:
    if load.vllm:
        return f"vLLM, {load.vllm}"
    if world.on_cpu and world.wrapper in ("", "DistributedDataParallel"):
        return "trustclip's decoder for a dense Qwen3 in float32, or else generate of Transformers"
    return "generate of Transformers (use_vllm is off)"


def _head(world: World) -> str:
    if world.zero_stage or world.wrapper == "DeepSpeedEngine":
        return "TRL's: DeepSpeed is on"
    return "trustclip's" if world.on_cpu else "TRL's kernels (set head='trustclip' for trustclip's)"


def remarks(world: World, load: Load) -> Iterator[Remark]:
    """Settings that would fail or be ignored, each with the remedy."""
    for text in (*_wrong_world(world), *_wrong_load(world, load)):
        yield Remark("error", text)
    if load.method.requires and world.wrapper.startswith("FSDP"):
        yield Remark(
            "note",
            f"{load.method.name!r} reads the model's head, which FSDP shards; gathering it has not "
            "been tested on GPUs: compare a few updates with DDP first.",
        )


def _wrong_world(world: World) -> Iterator[str]:
    requested = world.asked_ranks
    if requested is not None and requested > world.ranks:
        yield (
            f"{requested} ranks were asked for and {world.ranks} "
            f"{'was' if world.ranks == 1 else 'were'} started: accelerate launch starts several "
            "processes on a CPU only through mpirun, and srun alone starts processes that do not "
            f"form one group. Use `torchrun --nproc-per-node {requested} -m trustclip ...`."
        )
    if world.asked_wrapper and not world.wrapper.startswith(world.asked_wrapper):
        yield (
            f"{world.asked_wrapper} was asked for and the model would be in "
            f"{world.wrapper or 'no wrapper'}"
            + (": on a CPU, accelerate replaces it by DDP" if world.on_cpu else "")
            + "; every rank would hold the whole model and optimizer."
        )
    for device, ranks in Counter(world.devices).items():
        if ranks > 1 and not device.endswith("cpu"):
            yield f"{ranks} ranks share {device}: start one process per device."


def _wrong_load(world: World, load: Load) -> Iterator[str]:
    generation, group = _generation(world, load), load.num_generations
    schedule = load.schedule
    if generation % group:
        yield (
            f"per_device_train_batch_size x ranks x steps_per_generation = {load.batch} x "
            f"{world.ranks} x {schedule.steps_per_generation} = {generation} completions per "
            f"generation is not a multiple of num_generations = {group}."
        )
    passes = schedule.steps_per_generation * schedule.num_iterations
    update = schedule.gradient_accumulation_steps
    if passes % update and update % passes:
        yield (
            f"steps_per_generation x num_iterations = {passes} micro-batches and "
            f"gradient_accumulation_steps = {update}: neither divides the other, so some updates "
            "would mix samples of two policies."
        )
    if schedule.inert and Trait.ACTS_ON_POLICY not in load.method.traits:
        yield schedule.explain_inert(load.method.name)
    if load.saves and world.wrapper == "FSDP1":
        yield "checkpoints cannot be kept under FSDP1; set fsdp_version to 2, or save_steps to 0."
