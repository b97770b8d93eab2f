"""Seconds and memory: variants alternate in one process, each peak is from a separate one."""

import gc
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

MIB = 2**20


def in_turn(
    variants: Mapping[str, Callable[[], Any]], repeats: int, device: str = "cpu"
) -> dict[str, float]:
    """Median seconds of each variant, one after the other ``repeats`` times.

    Turns let a disturbance of the machine fall on all variants alike. On a CPU the process's CPU
    time is read, which other processes do not lengthen; on a GPU, events.

    Args:
      variants: functions without arguments, by name.
      repeats: turns, at least 1; on a GPU one more comes before them, in which kernels are built.
      device: ``"cpu"`` or ``"cuda"``.

    Returns:
      Seconds by name.

    Example:
      >>> list(in_turn({"nothing": lambda: None}, repeats=3))
      ['nothing']
    """
    clock = _device_seconds if device == "cuda" else _cpu_seconds
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    gc.freeze()  # existing objects need not be scanned before every call
    try:
        for turn in range(-1 if device == "cuda" else 0, repeats):
            for name, call in variants.items():
                duration = clock(call)
                if turn >= 0:
                    seconds[name].append(duration)
    finally:
        gc.unfreeze()
    return {name: statistics.median(values) for name, values in seconds.items()}


def _cpu_seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def _device_seconds(call: Callable[[], Any]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def peak_memory(build: Callable[..., Callable[[], Any]], *args: Any, device: str = "cpu") -> float:
    """Memory that a call needs beyond its inputs, MiB.

    On a CPU a separate process builds the inputs, notes its resident memory, resets its
    high-water mark where the system allows it, and calls once; on a GPU PyTorch's allocator counts.

    Args:
      build: function of a module, makes the inputs and returns the call to measure.
      args: of ``build``; both travel to the other process.
      device: ``"cpu"`` or ``"cuda"``.
    """
    if device == "cuda":
        return device_peak(build(*args))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_resident_peak, build, args).result()


def device_peak(call: Callable[[], Any]) -> float:
    """MiB that a call needs on the GPU beyond what is allocated before it."""
    import torch

    call()  # what is allocated once, cuBLAS's workspace say, counts for no variant
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def _resident_peak(build: Callable[..., Callable[[], Any]], args: tuple[Any, ...]) -> float:
    import torch

    torch.set_num_threads(1)
    call = build(*args)
    gc.collect()
    with suppress(OSError):  # elsewhere the mark stays where the inputs left it
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _high_water()
    call()
    return (_high_water() - before) / MIB


def _high_water() -> float:
    """Largest resident memory so far, bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
