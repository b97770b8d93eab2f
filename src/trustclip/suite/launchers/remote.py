"""A run under a scheduler: the worker that executes it, and its handle in the suite.

Both sides share the run directory and nothing else. The worker holds the lock of ``run.log`` as a
local run does, so no two ever work in one folder, and notes where it is in ``worker.json``. The
suite asks a worker to end by ``request.txt``; that reaches it under any scheduler.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from trustclip.suite.launchers.local import Interruptions, RunProcess, log_end
from trustclip.support.jsonl import write_text

WORKER, REQUEST = "worker.json", "request.txt"
POLL_SECONDS = 0.1


def attend(folder: Path, command: Sequence[str], where: Path, threads: int) -> int | None:
    """Run a command on this machine until it ends or is asked to end; called by a scheduler.

    On SIGTERM (a cancelled job), SIGUSR2 (submitit's signal before a time limit) or a request in
    ``request.txt`` the run saves and exits.

    Returns:
      Its exit status, or None if it waited for a process of an earlier call in the folder.
    """
    if _request(folder):
        return 0
    around = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONUNBUFFERED": "1"}
    # Slurm signals all processes of a job: the run must not die of the signal meant for its worker.
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    process = RunProcess(folder, command, around, where)
    place = {"host": os.uname().nodename, "pid": os.getpid(), "run": process.pid}
    try:
        with Interruptions(signal.SIGINT, signal.SIGTERM, signal.SIGUSR2) as interruptions:
            write_text(folder / WORKER, json.dumps(place))  # who reads it may send a signal
            status = _until_end(folder, process, interruptions)
    finally:
        process.kill()
        signal.signal(signal.SIGUSR2, before)
    return None if process.pid is None else status


def _until_end(folder: Path, process: RunProcess, interruptions: Interruptions) -> int:
    ending = False
    while (status := process.poll()) is None:
        request = _request(folder)
        if request == "kill":
            process.kill()
        elif not ending and (request or interruptions.count):
            ending = True
            process.ask_to_end()
        time.sleep(POLL_SECONDS)
    return status


def _request(folder: Path) -> str | None:
    try:
        return (folder / REQUEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


class Task(Protocol):
    """The scheduler's handle of a call of `attend`."""

    name: str

    def done(self) -> bool:
        """Whether it has ended or was lost."""
        ...

    def result(self) -> int | None:
        """Return value of `attend`; raises if the job failed or was lost."""
        ...

    def cancel(self) -> None:
        """Remove it from the queue."""
        ...


def clear(folder: Path) -> None:
    """Remove the files that an earlier worker and its suite exchanged."""
    for name in (WORKER, REQUEST):
        (folder / name).unlink(missing_ok=True)


class RemoteRun:
    """A run in a job of another scheduler."""

    def __init__(self, folder: Path, task: Task, *, reattached: bool = False) -> None:
        self._folder, self._task, self._reattached = folder, task, reattached
        self._lost: list[str] = []
        self._withdrawn = False
        self.started = time.monotonic()
        log = folder / "run.log"
        self._start = log.stat().st_size if log.exists() else 0

    @property
    def pid(self) -> str | None:
        """Name of the job; None while waiting for a run of an earlier call."""
        return None if self._reattached else self._task.name

    def poll(self) -> int | None:
        """Exit status; None while it waits or runs, 1 if its worker was lost."""
        if self._withdrawn:
            return 0
        if not self._task.done():
            return None
        try:
            status = self._task.result()
        # Whatever a scheduler raises, the job is over; the next call starts the run again.
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._lost = [f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"]
            return 1
        self._reattached = self._reattached or status is None
        return status or 0

    def ask_to_end(self) -> None:
        self._ask("end")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, request: Literal["end", "kill"]) -> None:
        """Ask by a file; a job that is still queued is removed from the queue."""
        write_text(self._folder / REQUEST, request)
        if not (self._folder / WORKER).exists():
            with suppress(Exception):  # just started or ended: the worker reads the request
                self._task.cancel()
            self._withdrawn = True

    def last_lines(self) -> list[str]:
        return [*log_end(self._folder / "run.log", self._start), *self._lost]
