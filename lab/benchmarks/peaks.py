"""Peaks of memory, each from a process of its own."""

import ctypes
import gc
import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trustclip_lab.bench.measure import MIB, device_peak


def peak_memory(call: Callable[[], Any], device: str = "cpu") -> float:
    """Memory that a call needs beyond its inputs, MiB.

    On a CPU a forked process notes its resident memory, resets its high-water mark where the system
    allows it, and calls once; on a GPU PyTorch's allocator counts.

    Args:
      call: what is measured; its inputs are there already.
      device: ``"cpu"`` or ``"cuda"``.
    """
    if device == "cuda":
        return device_peak(call)
    context = multiprocessing.get_context("fork")
    result, answer = context.Pipe(duplex=False)
    process = context.Process(target=lambda: answer.send(_resident_peak(call)))
    process.start()
    answer.close()
    peak = result.recv()
    process.join()
    return peak


def _resident_peak(call: Callable[[], Any]) -> float:
    gc.collect()
    with suppress(OSError, AttributeError):  # pages that were freed would take in what is asked for
        ctypes.CDLL(None).malloc_trim(0)
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
