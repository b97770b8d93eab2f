"""Peaks of memory, each from a process of its own."""

import gc
import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from trustclip_lab.bench.measure import MIB, device_peak


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
