"""Runs as local processes, never two at once in one folder.

The suite locks its folder (`trustclip.support.lock`). A run holds a lock on its own
``run.log``, which is its standard output: while it lives, even after the suite that started it has
ended, no other run is started there. The kernel releases both locks when their holder dies.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from trustclip.support.lock import locked
from trustclip.support.stops import Requests

#: Lines of a failed run's log that are kept.
LAST_LINES = 20
#: A run that is asked to end has so many seconds to save; then it is killed.
GRACE_SECONDS = 600.0


class RunProcess:
    """A run in a separate process, with its output in ``run.log``.

    Where a process of an earlier call still works in the folder, wait for that one instead.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        where: Path | None = None,
    ) -> None:
        self._log = folder / "run.log"
        self.started = time.monotonic()
        self._deadline = math.inf
        self._process: subprocess.Popen[bytes] | None = None
        with self._log.open("ab") as log:
            self._start = log.tell()
            if locked(log):
                # A session of its own: Ctrl-C in the terminal reaches the suite alone, which then
                # asks its runs to end, and children left behind by a run can be killed with it.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=where,
                    start_new_session=True,
                )

    @property
    def pid(self) -> int | None:
        """Its process; None where an earlier call started it."""
        return self._process.pid if self._process else None

    def poll(self) -> int | None:
        """Exit status (negative: the signal that ended it); None while it runs.

        0 for a process of an earlier call, whose status is unknown.
        """
        if self._process is None:
            with self._log.open("ab") as log:
                return 0 if locked(log) else None
        if time.monotonic() > self._deadline:
            self.kill()
        status = self._process.poll()
        if status is not None:
            # Servers and workers of a run that crashed would keep the GPU's memory.
            self.kill()
        return status

    def ask_to_end(self) -> None:
        """Send SIGTERM: the run saves and stops, or is killed ten minutes later."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._deadline = time.monotonic() + GRACE_SECONDS

    def kill(self) -> None:
        """Kill it and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self) -> list[str]:
        """Last lines of its output."""
        return log_end(self._log, self._start)


def log_end(log: Path, start: int) -> list[str]:
    """The last lines of a log after byte ``start``; none without a log."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-LAST_LINES:]


def environment(slot: int, slots: int, devices: Sequence[str]) -> dict[str, str]:
    """Environment of the run in one of ``slots``: its share of processors and GPUs.

    What the user has set (``OMP_NUM_THREADS``) stays.

    Example:
      >>> environment(1, 2, ["0", "1", "2"])["CUDA_VISIBLE_DEVICES"]
      '1'
    """
    share = {"OMP_NUM_THREADS": str(max(1, processors() // slots))}
    forced = {"PYTHONUNBUFFERED": "1"}
    if slots > 1 and devices:
        own = devices[slot::slots] or [devices[slot % len(devices)]]
        forced["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return {**share, **os.environ, **forced}


def processors() -> int:
    """Number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """GPUs available to this process, as in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]


class Interruptions(Requests):
    """Counts requests to stop instead of ending the process, inside ``with``."""

    def __init__(self, *signals: signal.Signals) -> None:
        super().__init__()
        self._signals = signals or (signal.SIGINT, signal.SIGTERM)
        self.status = 0

    def __enter__(self) -> "Interruptions":
        self._before = {number: signal.signal(number, self) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        super().__call__(number, frame)
        self.status = 128 + number
