"""How long tests wait: for something to happen, and never by a clock that a slow machine loses to.

A limit that is there only so that nothing hangs for ever is `NEVER`. A limit that is itself what a
test is about (a verifier's, that of ranks which wait for each other) is stretched by `slowness`.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds after which something hangs: many times what the slowest machine needs.
NEVER = 1800.0

#: The interpreter, which a test may replace by a stand-in.
_PYTHON = sys.executable

#: Seconds in which an idle machine starts Python and does `_WORK`, generously.
_IDLE = 0.15
_WORK = "sum(i * i for i in range(300_000))"


def until(condition: Callable[[], object], pause: float = 0.02) -> None:
    """Wait for a condition."""
    end = time.monotonic() + NEVER
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(pause)


def alive(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def slowness() -> float:
    """How many times slower than an idle machine this one is now; at least 1.

    The slowest of three tries: a machine that is busy in bursts is as slow as its worst one.
    """
    worst = 0.0
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([_PYTHON, "-S", "-c", _WORK], check=True)
        worst = max(worst, time.monotonic() - began)
    return max(1.0, worst / _IDLE)
