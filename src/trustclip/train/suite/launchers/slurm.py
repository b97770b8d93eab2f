"""Runs as Slurm jobs, by submitit.

submitit asks Slurm's accounting (sacct) what has become of a job. Many clusters keep none, so the
controller is asked here (squeue), and accounting only for the reason of an end. In a job `attend`
keeps the run; it and the suite exchange two small files in the run directory.
"""

import json
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trustclip.support.checked import checked
from trustclip.support.jsonl import write_text
from trustclip.support.names import unknown
from trustclip.support.text import one_line
from trustclip.support.yaml_files import parse_scalar
from trustclip.train.suite.launchers.local import (
    GRACE_SECONDS,
    Interruptions,
    RunProcess,
    log_end,
)

WORKER, REQUEST = "worker.json", "request.txt"
POLL_SECONDS = 0.1
#: States of a job that has ended; one with any other, also one that is new to us, has not.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
HOURS = 24.0
#: Seconds between two questions to Slurm's controller, each about all jobs of the suite.
EVERY = 10.0
#: Seconds that Slurm has to answer one.
PATIENCE = 60.0
#: Where a suite may run.
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


class Queue:
    """What Slurm's controller says of the user's jobs."""

    def __init__(self) -> None:
        self._states: Mapping[str, str] = {}
        self._look, self._at = 0, -EVERY
        self._missing: dict[str, int] = {}
        self._warned = False

    def state(self, job: str) -> str | None:
        """State of a job now; None of one that the controller does not know (any more)."""
        answer = _output_of("squeue", "--noheader", "--states=all", f"--user={os.getuid()}",
                       "--format=%i %T")  # fmt: skip
        self._states = dict(line.split(maxsplit=1) for line in answer.splitlines() if line.strip())
        self._look, self._at = self._look + 1, time.monotonic()
        return self._states.get(job)

    def end(self, job: str) -> str | None:
        """How a job without a result has ended; None while it may still write one.

        It has ended where two looks, `EVERY` seconds apart, found it ended or gone: a new job
        appears a little late, and so does a result that another machine has written.
        """
        if time.monotonic() - self._at >= EVERY:
            try:
                self.state(job)
            except ValueError as error:  # nothing is known to have ended
                self._at = time.monotonic()
                if not self._warned:
                    warnings.warn(f"{error}; asking again every {EVERY:g} s.", stacklevel=2)
                self._warned = True
                return None
        state = self._states.get(job)
        if state is not None and state not in ENDED:
            self._missing.pop(job, None)
            return None
        if self._look == self._missing.setdefault(job, self._look):
            return None
        return state if state and state != "COMPLETED" else _accounted_state(job) or state or "gone"


def _accounted_state(job: str) -> str | None:
    """State of a job in the cluster's accounting; None where it keeps none."""
    try:
        lines = _output_of("sacct", "--noheader", "--allocations", "--parsable2", "--format=State",
                      f"--jobs={job}").splitlines()  # fmt: skip
    except ValueError:
        return None
    return lines[0].strip() if lines else None


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"Slurm does not answer: {one_line(str(error))}") from error
    if done.returncode:
        raise ValueError(f"Slurm does not answer: {one_line(done.stderr.strip())}")
    return done.stdout


class Slurm:
    """One Slurm job per run.

    Jobs outlive the suite: the next call finds those that still wait or run, by ``slurm/job.txt``
    in the run directory.
    """

    def __init__(self, resources: Resources) -> None:
        import submitit  # pyright: ignore[reportMissingImports]

        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise ValueError(
                "--on slurm finds no sbatch and srun here: run it where jobs are submitted."
            )
        self._resources, self._queue, self._submitit = resources, Queue(), submitit

    def start(self, folder: Path, command: Sequence[str]) -> "SlurmRun":
        """Submit the run, or find the job of an earlier call."""
        folder = folder.resolve()
        earlier = self._earlier(folder / "slurm")
        if earlier is not None:
            return SlurmRun(folder, earlier, self._queue, reattached=True)
        for name in (WORKER, REQUEST):  # of an earlier worker
            (folder / name).unlink(missing_ok=True)
        executor = self._submitit.AutoExecutor(folder=folder / "slurm", cluster="slurm")
        executor.update_parameters(**self._parameters(folder.name))
        try:
            job = executor.submit(attend, folder, command, Path.cwd(), self._resources.cpus)
        except self._submitit.core.utils.FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(f"Slurm rejected the job of {folder.name}: {reason}") from error
        write_text(folder / "slurm" / "job.txt", job.job_id)
        return SlurmRun(folder, job, self._queue)

    def _earlier(self, folder: Path) -> Any | None:
        try:
            job_id = (folder / "job.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        job: Any = self._submitit.SlurmJob(folder=folder, job_id=job_id)
        # A job with a result is over, though Slurm may report it only later.
        if job.paths.result_pickle.exists():
            return None
        state = self._queue.state(job_id)
        return None if state is None or state in ENDED else job

    def _parameters(self, name: str) -> dict[str, Any]:
        resources = self._resources
        minutes = max(1, round(60 * (resources.hours or HOURS)))
        parameters: dict[str, Any] = {
            "name": name,
            "timeout_min": minutes,
            "gpus_per_node": resources.gpus,
            "cpus_per_task": resources.cpus,
            "slurm_signal_delay_s": int(min(GRACE_SECONDS, 30 * minutes)),
        }
        if resources.partition is not None:
            parameters["slurm_partition"] = resources.partition
        if resources.extra:
            parameters["slurm_additional_parameters"] = dict(resources.extra)
        return parameters


class SlurmRun:
    """A run in a job of Slurm."""

    def __init__(self, folder: Path, job: Any, queue: Queue, *, reattached: bool = False) -> None:
        self._folder, self._job, self._queue = folder, job, queue
        self._reattached = reattached
        self._lost: list[str] = []
        self._withdrawn = False
        self.started = time.monotonic()
        log = folder / "run.log"
        self._start = log.stat().st_size if log.exists() else 0

    @property
    def pid(self) -> str | None:
        """Name of the job; None while waiting for a run of an earlier call."""
        return None if self._reattached else f"job {self._job.job_id}"

    def poll(self) -> int | None:
        """Exit status; None while it waits or runs, 1 if its worker was lost."""
        if self._withdrawn:
            return 0
        end = "" if self._has_result() else self._queue.end(self._job.job_id)
        if end is None:
            return None
        if end:
            how = "cancelled, killed or lost" if end == "gone" else end
            self._lost = [f"job {self._job.job_id} left Slurm's queue without a result ({how})"]
            return 1
        try:
            status = self._job.result()
        # Whatever submitit raises, the job is over; the next call starts the run again.
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._lost = [f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"]
            return 1
        self._reattached = self._reattached or status is None
        return status or 0

    def _has_result(self) -> bool:
        """Whether the job has left one, also on a file system of the network that remembers."""
        folder = self._job.paths.folder
        with suppress(OSError):
            folder.chmod(folder.stat().st_mode)
        return self._job.paths.result_pickle.exists()

    def ask_to_end(self) -> None:
        self._ask("end")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, request: Literal["end", "kill"]) -> None:
        """Ask by a file; a job that is still queued is removed from the queue."""
        write_text(self._folder / REQUEST, request)
        if not (self._folder / WORKER).exists():
            with suppress(Exception):  # just started or ended: the worker reads the request
                self._job.cancel()
            self._withdrawn = True

    def last_lines(self) -> list[str]:
        return [*log_end(self._folder / "run.log", self._start), *self._lost]
