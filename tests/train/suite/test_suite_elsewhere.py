"""Suites on Slurm: the stand-in runs in real jobs of submitit."""

import importlib.util
import json
import os
import shutil
import signal
import stat
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from patience import until
from rich.console import Console
from test_suite import SUITE, WORKER, Folder

from trustclip.cli.main import main
from trustclip.train.suite import run_suite
from trustclip.train.suite.launchers.slurm import Resources, attend, resources_of

NO_GPU = {"gpus": 0, "cpus": 1}


SLURM = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs submitit: the extra 'slurm'"
)


class Elsewhere(Folder):
    def run(self, **options: Any):
        return super().run(on="slurm", resources=NO_GPU, **options)

    def small(self):
        """Two runs, no SFT."""
        recipe = yaml.safe_load((self.path / "recipe.yaml").read_text()) | {"sft": None}
        methods = {name: SUITE["methods"][name] for name in ("atr", "clip")}
        self.write(recipe, seeds=[0], methods=methods)

    def begun(self):
        return [f for f in self.out.glob("*-seed*/run.log") if "began at" in f.read_text()]

    def workers(self):
        files = self.out.glob("*-seed*/worker.json")
        return [json.loads(text) for f in files if (text := f.read_text())]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Elsewhere(tmp_path, monkeypatch)


@pytest.mark.slow
@SLURM
@pytest.mark.usefixtures("commands")
def test_the_same_runs_table_and_resume_as_on_this_machine(folder):
    folder.write(seeds=[0])
    said = folder.run()
    assert folder.status == 0, said
    started = folder.starts()
    assert started[0].startswith("sft-") and len(started) == 4
    assert folder.folders() == ["atr-seed0", "clip-seed0", "none-seed0", "sft"]
    text = (folder.out / "table.md").read_text()
    assert "75.0" in text
    assert "update 8/8" in said and "clip-seed0" in said
    places = folder.workers()
    assert len(places) == 3 and all(p["host"] == os.uname().nodename for p in places)
    folder.run()
    assert folder.status == 0 and not (folder.control / "starts.txt").exists()
    folder.write(seeds=[0, 1])
    Folder.run(folder)  # and go on with it on this machine
    assert folder.status == 0 and len(folder.starts()) == 3


@pytest.mark.slow
@SLURM
@pytest.mark.usefixtures("commands")
def test_asked_to_end_runs_save_and_the_next_call_continues(folder):
    folder.small()
    (folder.control / "hold").touch()

    def interrupt():
        until(lambda: folder.alive() == 2 and len(folder.workers()) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    folder.run()
    thread.join()
    assert folder.status == 128 + signal.SIGTERM
    assert len(folder.events("interrupted")) == 2 and not folder.alive()
    saved = list(folder.out.glob("*-seed*/state.json"))
    assert len(saved) == 2
    (folder.control / "hold").unlink()
    folder.run()
    assert folder.status == 0
    for path in saved:
        log = path.with_name("run.log").read_text().splitlines()
        assert log[0] == "began at 0" and log[1] in ("began at 1", "began at 2")


# A Slurm of one machine: sbatch runs the script, srun its command, squeue tells who lives.
SBATCH = """#!/bin/sh
cp "$1" {log}/last.sh
echo x >> {log}/jobs
id=$(wc -l < {log}/jobs)
SLURM_JOB_ID=$id SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 \\
SLURM_LOCALID=0 SLURM_JOB_NODELIST=here setsid sh -c "echo \\$\\$ > {log}/$id.pid; sh $1" \\
  > {log}/$id.out 2>&1 < /dev/null &
echo "Submitted batch job $id"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
  case "$1" in --output|--error) shift;; esac
  shift
done
exec "$@"
"""
SQUEUE = """#!/bin/sh
for f in {log}/*.pid; do
  if kill -0 $(cat $f) 2>/dev/null; then echo "$(basename $f .pid) RUNNING"; fi
done
exit 0
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Slurm's commands on the path, as far as submitit calls them."""
    log = tmp_path / "slurm-log"
    log.mkdir()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("squeue", SQUEUE)):
        (bin_ / name).write_text(text.replace("{log}", str(log)))
        (bin_ / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    return log


@SLURM
def test_sbatch_is_told_the_resources_and_finds_jobs_of_an_earlier_call(folder, commands):
    from trustclip.train.suite.launchers.slurm import Slurm

    asked = Resources(gpus=2, cpus=3, hours=0.5, partition="long", extra={"account": "me"})
    path = folder.out / "a-run"
    path.mkdir(parents=True)
    (folder.control / "go").unlink(missing_ok=True)
    waits = [sys.executable, "-c", WAITS.format(folder.control / "go")]
    first = Slurm(asked).start(path, waits, 0)
    assert first.pid == "job 1" and first.poll() is None
    script = (commands / "last.sh").read_text()
    for line in ("partition=long", "account=me", "gpus-per-node=2", "cpus-per-task=3",
                 "time=30", "signal=USR2@600", "job-name=a-run"):  # fmt: skip
        assert f"--{line}" in script
    until(lambda: (path / "worker.json").exists())
    second = Slurm(asked).start(path, waits, 0)
    assert second.pid is None and second.poll() is None  # found, not submitted again
    (folder.control / "go").touch()
    until(lambda: first.poll() is not None)
    assert first.poll() == 0 and (path / "run.log").read_text() == "went\n"
    until(lambda: second.poll() is not None)
    assert Slurm(asked).start(path, waits, 0).pid == "job 2"


WAITS = """import pathlib, time
while not pathlib.Path({!r}).exists(): time.sleep(0.01)
print("went")""".replace("{!r}", "'{}'")


@SLURM
def test_slurm_that_takes_no_job_is_told(folder, commands):
    refuse = shutil.which("sbatch")
    assert refuse is not None
    with open(refuse, "w") as file:
        file.write(
            "#!/bin/sh\necho 'sbatch: error: invalid partition specified: lnog' >&2\nexit 1\n"
        )
    with pytest.raises(ValueError, match=r"rejected the job of .*invalid partition"):
        run_suite(
            folder.file, Console(), on="slurm", resources={"partition": "lnog"}, command=WORKER
        )


def test_a_worker_told_that_time_is_up_ends_its_run(folder):
    """SIGUSR2 to every process of the job, as Slurm sends it, and the run saves."""
    path = folder.out / "a-run"
    path.mkdir(parents=True)

    def tell():
        until(lambda: (path / "run.log").exists() and "ready" in (path / "run.log").read_text())
        until((path / "worker.json").exists)
        place = json.loads((path / "worker.json").read_text())
        os.kill(place["run"], signal.SIGUSR2)
        os.kill(place["pid"], signal.SIGUSR2)

    thread = threading.Thread(target=tell)
    thread.start()
    status = attend(path, [sys.executable, "-uc", SAVES], folder.path, 1)
    thread.join()
    assert status == 0 and (path / "run.log").read_text() == "ready\nsaved\n"


SAVES = """import signal, sys, time
def end(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready")
time.sleep(3600)"""


class Queued:
    """A job that no worker has begun."""

    job_id = "7"
    cancelled = False

    def __init__(self, folder):
        self.paths = SimpleNamespace(folder=folder, result_pickle=folder / "none")

    def cancel(self):
        self.cancelled = True


@SLURM
@pytest.mark.usefixtures("commands")
def test_a_run_that_still_waits_is_taken_from_the_queue(tmp_path):
    from trustclip.train.suite.launchers.slurm import Queue, SlurmRun

    job = Queued(tmp_path)
    run = SlurmRun(tmp_path, job, Queue())
    assert run.pid == "job 7" and run.poll() is None and run.last_lines() == []
    run.ask_to_end()
    assert run.poll() == 0 and job.cancelled
    assert attend(tmp_path, ["false"], tmp_path, 1) == 0  # begun all the same, it does nothing
    assert not (tmp_path / "run.log").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "slrum"], "unknown place for --on 'slrum'; did you mean 'slurm'?"),
        (["--on", "slurm", "--gpus", "-1"], "`gpus` should be greater than or equal to 0, got -1"),
        (["--on", "slurm", "--hours", "0"], "`hours` should be greater than 0, got 0"),
        (["--gpus", "1"], "--gpus does not apply to --on local, only to slurm."),
        (["--on", "slurm", "--extra", "account"], "--extra needs NAME=VALUE, got 'account'"),
    ],
)  # fmt: skip
def test_bad_arguments_before_anything_starts(folder, arguments, message, capsys):
    assert main(["suite", str(folder.file), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not folder.out.exists()


def test_a_missing_package_is_told_with_its_remedy(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["suite", str(folder.file), "--on", "slurm"]) == 2
    said = capsys.readouterr().err
    assert "the package submitit is not installed: pip install 'trustclip[slurm]'" in said
    assert not folder.out.exists()


def test_without_slurm_here_is_told(folder, monkeypatch):
    if importlib.util.find_spec("submitit") is None or shutil.which("sbatch"):
        pytest.skip("needs submitit, and no Slurm")
    from trustclip.train.suite.launchers.slurm import Slurm

    with pytest.raises(ValueError, match="finds no sbatch and srun here"):
        Slurm(Resources())


def test_resources_of_the_command_line():
    given = {"gpus": None, "cpus": 2, "extra": ("account=me", "nice=5"), "hours": None}
    assert resources_of("slurm", given) == Resources(cpus=2, extra={"account": "me", "nice": 5})
    assert resources_of("local", {"gpus": None, "extra": ()}) is None
