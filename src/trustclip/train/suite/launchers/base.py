"""Where the runs of a suite are executed: on this machine, or by a scheduler."""

import importlib
import importlib.util
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from trustclip.support.checked import checked
from trustclip.support.jsonl import write_text
from trustclip.support.names import unknown
from trustclip.support.yaml_files import parse_scalar
from trustclip.train.suite.launchers.local import (
    Interruptions,
    RunProcess,
    environment,
    gpus,
    log_end,
)


@checked
class Resources:
    """Resources of one run under a scheduler.

    Example:
      >>> Resources(gpus=-1)
      Traceback (most recent call last):
      ...
      ValueError: `gpus` should be greater than or equal to 0, got -1
    """

    gpus: Annotated[int, Field(ge=0)] = 1
    """GPUs."""
    cpus: Annotated[int, Field(ge=1)] = 4
    """Processors."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Time limit of a Slurm job; 24 when unset. At the limit the run saves and stops."""
    partition: Annotated[str, Field(min_length=1)] | None = None
    """Partition of a Slurm cluster."""
    extra: dict[str, str | int | float] = field(default_factory=dict)
    """Options of sbatch (account: ...), or amounts of a Ray cluster's custom resources."""


class Running(Protocol):
    """A started run."""

    started: float

    @property
    def pid(self) -> int | str | None:
        """Its process or job; None where an earlier call started it."""
        ...

    def poll(self) -> int | None:
        """Exit status (negative: the signal that ended it); None while it runs."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to save and stop."""
        ...

    def kill(self) -> None:
        """Kill it and its children."""
        ...

    def last_lines(self) -> list[str]:
        """Last lines of its output."""
        ...


class Launcher(Protocol):
    """Starts runs."""

    def start(self, folder: Path, command: Sequence[str], slot: int) -> Running:
        """Start ``command`` for a run directory in one of the slots."""
        ...

    def close(self) -> None:
        """Release the launcher's resources."""
        ...


class Local:
    """Processes on this machine, which share its processors and GPUs."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._gpus = gpus() if slots > 1 else []

    def start(self, folder: Path, command: Sequence[str], slot: int) -> RunProcess:
        return RunProcess(folder, command, environment(slot, self._slots, self._gpus))

    def close(self) -> None:
        """Nothing to release."""


#: Scheduler -> (module, launcher class, package that it needs).
ELSEWHERE = {"slurm": ("slurm", "Slurm", "submitit"), "ray": ("ray", "Ray", "ray")}


def elsewhere(on: str, resources: Resources) -> Launcher:
    """The launcher of another scheduler."""
    module, name, package = ELSEWHERE[on]
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"--on {on} needs the package {package}: pip install 'trustclip[{on}]', here and "
            "where the runs execute."
        )
    return getattr(importlib.import_module(f"trustclip.train.suite.launchers.{module}"), name)(
        resources
    )


def resources_of(on: str, options: Mapping[str, Any]) -> Resources | None:
    """The resources of each run that options ask for; None on this machine, without a scheduler.

    Options are given by name, None where omitted; ``extra`` as ``NAME=VALUE`` texts.
    """
    if on not in ("local", *ELSEWHERE):
        raise ValueError(unknown("place for --on", on, ("local", *ELSEWHERE)))
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    places = {"local": (), "ray": ("gpus", "cpus", "extra")}
    allowed = places.get(on, [f.name for f in fields(Resources)])  # type: ignore[arg-type]
    for name in chosen:
        if name not in allowed:
            others = [o for o in ("slurm", "ray") if o != on and name in places.get(o, (name,))]
            raise ValueError(
                f"--{name} does not apply to --on {on}, only to {' and '.join(others)}."
            )
    if "extra" in chosen:
        pairs = {text: text.partition("=") for text in chosen["extra"]}
        if wrong := [text for text, parts in pairs.items() if not all(parts)]:
            raise ValueError(f"--extra needs NAME=VALUE, got {wrong[0]!r}.")
        chosen["extra"] = {name: parse_scalar(value) for name, _, value in pairs.values()}
    return None if on == "local" else Resources(**chosen)


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
