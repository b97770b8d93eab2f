"""Where the runs of a suite are executed: on this machine, or in jobs of Slurm."""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from trustclip.support.checked import checked
from trustclip.support.jsonl import write_text
from trustclip.support.names import unknown
from trustclip.support.yaml_files import parse_scalar
from trustclip.train.suite.launchers.local import Interruptions, RunProcess

PLACES = ("local", "slurm")


@checked
class Resources:
    """Resources of one run under Slurm.

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
    """Time limit; 24 when unset. At the limit the run saves and stops."""
    partition: Annotated[str, Field(min_length=1)] | None = None
    """Partition of the cluster."""
    extra: dict[str, str | int | float] = field(default_factory=dict)
    """Options of sbatch, such as account."""


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


def resources_of(on: str, options: Mapping[str, Any]) -> Resources | None:
    """The resources of each run that options ask for; None on this machine.

    Options are given by name, None where omitted; ``extra`` as ``NAME=VALUE`` texts.
    """
    if on not in PLACES:
        raise ValueError(unknown("place for --on", on, PLACES))
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    if on == "local":
        for name in chosen:
            raise ValueError(f"--{name} does not apply to --on local, only to slurm.")
        return None
    if "extra" in chosen:
        pairs = {text: text.partition("=") for text in chosen["extra"]}
        if wrong := [text for text, parts in pairs.items() if not all(parts)]:
            raise ValueError(f"--extra needs NAME=VALUE, got {wrong[0]!r}.")
        chosen["extra"] = {name: parse_scalar(value) for name, _, value in pairs.values()}
    return Resources(**chosen)


WORKER, REQUEST = "worker.json", "request.txt"


POLL_SECONDS = 0.1


def attend(folder: Path, command: Sequence[str], where: Path, threads: int) -> int | None:
    """Run a command on this machine until it ends or is asked to end; called by a Slurm job.

    On SIGTERM (a cancelled job), SIGUSR2 (submitit's signal before a time limit) or a request in
    ``request.txt`` the run saves and exits.

    Returns:
      Its exit status, or None if it waited for a process of an earlier call in the folder.
    """
    if request_in(folder):
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
        request = request_in(folder)
        if request == "kill":
            process.kill()
        elif not ending and (request or interruptions.count):
            ending = True
            process.ask_to_end()
        time.sleep(POLL_SECONDS)
    return status


def request_in(folder: Path) -> str | None:
    """What the suite has asked of a run: ``end``, ``kill`` or nothing."""
    try:
        return (folder / REQUEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def clear(folder: Path) -> None:
    """Remove the files that an earlier worker and its suite exchanged."""
    for name in (WORKER, REQUEST):
        (folder / name).unlink(missing_ok=True)
