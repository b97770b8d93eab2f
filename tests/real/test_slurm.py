"""Suites on a real Slurm of one machine, with its accounting and without: nothing is a stand-in."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

import pytest
from patience import NEVER, until
from real.few import written
from real.slurm_cluster import cluster, missing

if importlib.util.find_spec("submitit") is None:
    pytest.skip("needs submitit: the extra 'slurm'", allow_module_level=True)


class Suite:
    """``trustclip suite`` on a cluster in which one of its two runs fits at a time."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.out = folder / "out"
        written(folder)

    def start(self, *before: str, gpus: int = 0, more: Sequence[str] = ()) -> "Popen[str]":
        line = [*before, sys.executable, "-m", "trustclip", "suite", "suite.yaml", "--on", "slurm"]
        return Popen(
            [*line, "--gpus", str(gpus), "--cpus", "2", *more],
            cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def slurm(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def states(self) -> Counter[str]:
        return Counter(self.slurm("squeue", "--noheader", "--format=%T").split())

    def both_submitted(self) -> None:
        until(lambda: self.states() == {"RUNNING": 1, "PENDING": 1}, pause=0.2)

    def hold(self) -> None:
        """Stop the job that runs, whose run has begun, and let no other begin."""
        until(lambda: len(list(self.out.glob("*-seed*/worker.json"))) == 1)
        self.slurm("scontrol", "update", "PartitionName=all", "State=DOWN")
        self.slurm("scontrol", "suspend", self.job("RUNNING"))

    def release(self) -> None:
        """Undo it."""
        for job in self.slurm("squeue", "--noheader", "--states=SUSPENDED", "--format=%i").split():
            self.slurm("scontrol", "resume", job)
        self.slurm("scontrol", "update", "PartitionName=all", "State=UP")

    def job(self, state: str) -> str:
        """Number of the one job in a state."""
        (job,) = self.slurm("squeue", "--noheader", f"--states={state}", "--format=%i").split()
        return job

    def cancel(self, state: str) -> str:
        """Cancel the job in a state."""
        job = self.job(state)
        self.slurm("scancel", job)
        return job

    def events(self) -> Counter[str]:
        log = self.out / "events.jsonl"
        return Counter(json.loads(row)["event"] for row in log.read_text().splitlines())

    @property
    def submitted(self) -> int:
        return len(list(self.out.glob("*-seed*/slurm/*_submitted.pkl")))

    @property
    def finished(self) -> int:
        return len(list(self.out.glob("*-seed*/summary.json")))


@pytest.fixture(params=[False, True], ids=["without accounting", "with accounting"])
def suite(request, tmp_path):
    if lacking := missing(accounting=request.param):
        pytest.skip(f"needs Slurm's programs: {', '.join(lacking)}; Debian's: make slurm")
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as short,
        cluster(Path(short), accounting=request.param) as environment,
    ):
        yield Suite(tmp_path, environment | {"OMP_NUM_THREADS": "1"})


def test_a_suite_killed_and_started_again_submits_nothing_twice(suite):
    """And a queued job that somebody cancels meanwhile is noticed and submitted anew."""
    first = suite.start()
    suite.both_submitted()
    suite.hold()
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=NEVER)
    second = suite.start()
    until(lambda: suite.events()["found running"] == 2)
    assert suite.submitted == 2
    suite.cancel("PENDING")
    until(lambda: suite.submitted == 3)
    suite.release()
    out, err = second.communicate(timeout=NEVER)
    assert second.returncode == 0 and suite.finished == 2, out + err
    assert suite.submitted == 3
    assert "--on slurm" in (suite.out / "table.md").read_text()
    for noise in ("sacct", "accounting", "Traceback", "Warning"):
        assert noise not in out + err


def test_a_job_that_is_cancelled_or_killed_is_told_and_the_next_call_finishes(suite):
    first = suite.start()
    suite.both_submitted()
    suite.hold()
    job = suite.cancel("PENDING")
    (worker,) = suite.out.glob("*-seed*/worker.json")
    place = json.loads(worker.read_text())
    for name in ("run", "pid"):
        os.kill(place[name], signal.SIGKILL)
    suite.release()
    out, err = first.communicate(timeout=NEVER)
    assert first.returncode == 1, out + err
    assert suite.events()["failed"] == 2
    assert f"job {job} left Slurm's queue without a result (CANCELLED" in out
    again = suite.start()
    out, err = again.communicate(timeout=NEVER)
    assert again.returncode == 0 and suite.finished == 2, out + err
    assert suite.submitted == 4


@pytest.mark.parametrize("suite", [False], ids=["without accounting"], indirect=True)
def test_timeout_saves_the_runs_and_the_next_call_finishes(suite):
    """GNU timeout signals the suite twice at once: itself, and as one of its group."""
    first = suite.start("timeout", "1000")
    suite.both_submitted()
    until(lambda: list(suite.out.glob("*-seed*/worker.json")))
    first.send_signal(signal.SIGTERM)  # passed on as at its own end
    out, err = first.communicate(timeout=NEVER)
    assert first.returncode != 0 and suite.events()["failed"] == 0, out + err
    assert "kill" not in [file.read_text() for file in suite.out.glob("*/request.txt")]
    again = suite.start()
    out, err = again.communicate(timeout=NEVER)
    assert again.returncode == 0 and suite.finished == 2, out + err


@pytest.mark.parametrize("suite", [False], ids=["without accounting"], indirect=True)
def test_a_job_has_what_was_asked_for_and_slurms_refusal_is_told(suite):
    asked = ["--hours", "0.5", "--partition", "all", "--extra", "nice=5"]
    first = suite.start(more=asked)
    suite.both_submitted()
    said = suite.slurm("scontrol", "show", "job", suite.job("PENDING"))
    for words in ("TimeLimit=00:30:00", "Partition=all", "Nice=5", "NumCPUs=2", "JobName=clip-"):
        assert words in said
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=NEVER)
    for wrong, reason in ({"gpus": 1}, "gres"), ({"more": ["--partition", "lnog"]}, "partition"):
        refused = suite.start(**wrong)
        _, err = refused.communicate(timeout=NEVER)
        assert refused.returncode == 2 and "Slurm rejected the job of" in err and reason in err
