# pyright: reportMissingImports=false
"""For tests alone: lets an unmodified verl 0.9 train on CPUs, through its own registries.

verl has no CPU platform, registers its FSDP engine for accelerators only, and samples with GPU
servers only. Loaded into every process of a job by ``VERL_USE_EXTERNAL_MODULES=verl_on_cpu`` with
``VERL_PLATFORM=cpu``. One function of torch is wrapped: verl asks for the backend
``cpu:gloo,cpu:gloo``, which torch refuses.
"""

import contextlib
import functools
import types
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """What torch.cuda is to verl, as far as it is asked."""
    module = types.ModuleType("verl_on_cpu.device")
    for name in ("is_available", "device_count", "synchronize", "current_device", "Stream"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("stream", "current_stream"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("set_device", "empty_cache", "reset_peak_memory_stats"):
        setattr(module, name, _nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        setattr(module, name, _zero)
    more = {
        "max_memory_reserved": _zero,
        "mem_get_info": lambda *_: (1 << 33, 1 << 34),
        "get_device_name": lambda *_: "cpu",
        "get_device_capability": lambda *_: (0, 0),
        "is_initialized": lambda: True,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    }
    for name, value in more.items():
        setattr(module, name, value)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """CPUs as one device per process, counted by Ray as the resource "GPU" that verl asks for."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int | None = None) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def _accept_gloo_twice() -> None:
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    c10d.init_process_group = torch.distributed.init_process_group = init_process_group


def _register() -> None:
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def replica() -> Any:
        from verl_on_cpu.rollout import Replica

        return Replica

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(
        FSDPEngineWithLMHead
    )
    base._ROLLOUT_REGISTRY[("hf_cpu", "async")] = "verl_on_cpu.rollout.Adapter"
    RolloutReplicaRegistry.register("hf_cpu", replica)


_accept_gloo_twice()
_register()
