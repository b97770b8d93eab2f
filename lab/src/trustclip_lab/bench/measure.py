"""Seconds of variants that alternate in one process, and memory on a GPU."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
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


def device_peak(call: Callable[[], Any]) -> float:
    """MiB that a call needs on the GPU beyond what is allocated before it."""
    import torch

    call()  # what is allocated once, cuBLAS's workspace say, counts for no variant
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / MIB
