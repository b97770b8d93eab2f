"""Runs as Slurm jobs, by submitit."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit  # pyright: ignore[reportMissingImports]  # an extra
from submitit.core.utils import FailedJobError  # pyright: ignore[reportMissingImports]

from trustclip.runs.jsonl import write_text
from trustclip.suite.launchers.base import Resources
from trustclip.suite.launchers.local import GRACE_SECONDS
from trustclip.suite.launchers.remote import RemoteRun, attend, clear

#: States of a job that has not ended.
ALIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "RESIZING", "SUSPENDED"}
HOURS = 24.0


class Slurm:
    """One Slurm job per run.

    Jobs outlive the suite: the next call finds those that still wait or run, by ``slurm/job.txt``
    in the run directory.

    Args:
      resources: of each job.
      cluster: submitit's name of the executor; ``"local"`` runs jobs as processes.
    """

    def __init__(self, resources: Resources, cluster: str = "slurm") -> None:
        if cluster == "slurm" and (shutil.which("sbatch") is None or shutil.which("srun") is None):
            raise ValueError(
                "--on slurm finds no sbatch and srun here: run it where jobs are submitted."
            )
        self._resources, self._cluster = resources, cluster

    def start(self, folder: Path, command: Sequence[str], slot: int) -> RemoteRun:
        """Submit the run, or find the job of an earlier call."""
        folder = folder.resolve()
        earlier = self._earlier(folder / "slurm")
        if earlier is not None:
            return RemoteRun(folder, _Job(earlier), found=True)
        clear(folder)
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster=self._cluster)
        executor.update_parameters(**self._parameters(folder.name))
        try:
            job = executor.submit(attend, folder, command, Path.cwd(), self._resources.cpus)
        except FailedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(f"Slurm rejected the job of {folder.name}: {reason}") from error
        write_text(folder / "slurm" / "job.txt", job.job_id)
        return RemoteRun(folder, _Job(job))

    def close(self) -> None:
        """Nothing to release: the jobs belong to Slurm."""

    def _earlier(self, folder: Path) -> Any | None:
        try:
            job_id = (folder / "job.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        if self._cluster != "slurm":
            return None
        job: Any = submitit.SlurmJob(folder=folder, job_id=job_id)
        # A job with a result is over, though Slurm's accounting may report it only later.
        alive = not job.done() and job.watcher.get_state(job_id, mode="force") in ALIVE
        return job if alive else None

    def _parameters(self, name: str) -> dict[str, Any]:
        asked = self._resources
        minutes = max(1, round(60 * (asked.hours or HOURS)))
        parameters: dict[str, Any] = {
            "name": name,
            "timeout_min": minutes,
            "gpus_per_node": asked.gpus,
            "cpus_per_task": asked.cpus,
            "slurm_signal_delay_s": int(min(GRACE_SECONDS, 30 * minutes)),
        }
        if asked.partition is not None:
            parameters["slurm_partition"] = asked.partition
        if asked.extra:
            parameters["slurm_additional_parameters"] = dict(asked.extra)
        return parameters


class _Job:
    def __init__(self, job: Any) -> None:
        self._job = job
        self.name = f"job {job.job_id}"

    def done(self) -> bool:
        return self._job.done()

    def result(self) -> int | None:
        return self._job.result()

    def cancel(self) -> None:
        self._job.cancel()
