"""Suites on Slurm and Ray: the stand-in runs in real jobs of submitit and tasks of a local Ray."""

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import pytest
import yaml
from patience import NEVER, until
from rich.console import Console
from test_suite import SUITE, WORKER, Folder

from trustclip.cli.main import main
from trustclip.support.jsonl import read_jsonl
from trustclip.train.suite import run_suite
from trustclip.train.suite.launchers.base import RemoteRun, Resources, attend, resources_of

NO_GPU = {"gpus": 0, "cpus": 1}


def needs(package, extra):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}: the extra {extra!r}")


SLURM, RAY = needs("submitit", "slurm"), needs("ray", "ray")
EVERYWHERE = pytest.mark.parametrize(
    "on", [pytest.param("slurm", marks=SLURM), pytest.param("ray", marks=RAY)]
)


class Elsewhere(Folder):
    def run(self, on, **options: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().run(on=on, resources=NO_GPU, **options)

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


@pytest.fixture(autouse=True)
def executors(request, monkeypatch):
    """Jobs of submitit's local executor, and one Ray of two processors for all tests of it."""
    if "[slurm]" in request.node.name and SLURM.args == (False,):
        from trustclip.train.suite.launchers import slurm as on_slurm

        before = on_slurm.Slurm.__init__
        monkeypatch.setattr(on_slurm.Slurm, "__init__", lambda s, r: before(s, r, "local"))
    if "ray" in request.node.name and RAY.args == (False,):
        request.getfixturevalue("cluster")


@pytest.fixture(scope="module")
def cluster():
    import ray  # pyright: ignore[reportMissingImports]

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=3, num_gpus=0, log_to_driver=False, logging_level="error",
             object_store_memory=80_000_000, include_dashboard=False)  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def environment_of_workers(request, folder, monkeypatch):
    """Ray's workers have the environment of the Ray that began before the test did."""
    if "ray" in request.node.name:
        said = (sys.executable, "-c", AROUND, str(folder.control), *WORKER)
        monkeypatch.setattr("test_suite.WORKER", said)


AROUND = "import os, sys; os.environ['STANDIN'] = sys.argv[1]; os.execv(sys.argv[2], sys.argv[2:])"


@pytest.mark.slow
@EVERYWHERE
def test_the_same_runs_table_and_resume_as_on_this_machine(folder, on):
    folder.write(seeds=[0])
    said = folder.run(on)
    assert folder.status == 0, said
    started = folder.starts()
    assert started[0].startswith("sft-") and len(started) == 4
    assert folder.folders() == ["atr-seed0", "clip-seed0", "none-seed0", "sft"]
    table = json.loads((folder.out / "table.json").read_text())
    assert table["rows"][0]["final"]["mean@4"]["value"] == 0.75
    assert f"--on {on} --gpus 0 --cpus 1" in (folder.out / "table.md").read_text()
    assert "update 8/8" in said and "clip-seed0" in said
    places = folder.workers()
    assert len(places) == 3 and all(p["host"] == os.uname().nodename for p in places)
    folder.run(on)
    assert folder.status == 0 and not (folder.control / "starts.txt").exists()
    folder.write(seeds=[0, 1])
    Folder.run(folder)  # and go on with it on this machine
    assert folder.status == 0 and len(folder.starts()) == 3


@pytest.mark.slow
@EVERYWHERE
def test_a_lost_worker_is_told_and_its_run_started_again(folder, on):
    folder.small()
    (folder.control / "hold").touch()

    def lose():
        until(lambda: folder.alive() == 2 and len(folder.begun()) == len(folder.workers()) == 2)
        for place in folder.workers():
            os.kill(place["pid"], signal.SIGKILL)
            os.kill(place["run"], signal.SIGKILL)
        for file in folder.control.glob("alive-*"):
            file.unlink()

    thread = threading.Thread(target=lose)
    thread.start()
    folder.run(on)
    thread.join()
    assert folder.status == 1 and len(folder.events("failed")) == 2
    failed = [r for r in read_jsonl(folder.out / "events.jsonl") if r["event"] == "failed"]
    assert all(row["log"][0] == "began at 0" and len(row["log"]) == 2 for row in failed)
    (folder.control / "hold").unlink()
    folder.starts()
    folder.run(on)
    assert folder.status == 0 and len(folder.starts()) == 2


@pytest.mark.slow
@EVERYWHERE
def test_a_failed_run_has_its_status_and_its_last_lines(folder, on):
    folder.small()
    (folder.control / "fail-clip").touch()
    said = folder.run(on)
    assert folder.status == 1 and "exit status 3: out of memory" in said
    assert len(folder.events("finished")) == 1


@pytest.mark.slow
@EVERYWHERE
def test_asked_to_end_runs_save_and_the_next_call_continues(folder, on):
    folder.small()
    (folder.control / "hold").touch()

    def interrupt():
        until(lambda: folder.alive() == 2 and len(folder.workers()) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    folder.run(on)
    thread.join()
    assert folder.status == 128 + signal.SIGTERM
    assert len(folder.events("interrupted")) == 2 and not folder.alive()
    saved = list(folder.out.glob("*-seed*/state.json"))
    assert len(saved) == 2
    (folder.control / "hold").unlink()
    folder.run(on)
    assert folder.status == 0
    for path in saved:
        log = path.with_name("run.log").read_text().splitlines()
        assert log[0] == "began at 0" and log[1] in ("began at 1", "began at 2")


@pytest.mark.slow
@EVERYWHERE
def test_a_run_of_an_earlier_call_is_waited_for(folder, on):
    """It is still at work, its suite and worker are not: its lock is seen by the next worker."""
    folder.small()
    (folder.control / "hold").touch()
    suite = folder.in_a_process()
    until(lambda: folder.alive() == 2)
    suite.kill()
    suite.communicate(timeout=NEVER)

    def release():
        until(lambda: len(folder.workers()) == 2)
        time.sleep(0.3)
        (folder.control / "hold").unlink()

    thread = threading.Thread(target=release)
    thread.start()
    folder.run(on)
    thread.join()
    assert folder.status == 0 and len(folder.starts()) == 2


LISTENS = """
import json, psutil
from trustclip.train.suite.launchers.base import Resources
from trustclip.train.suite.launchers.ray import Ray

ray = Ray(Resources(gpus=0, cpus=1))
own = psutil.Process()
sockets = [s for p in (own, *own.children(recursive=True)) for s in p.net_connections("inet")]
print(json.dumps([s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN]))
ray.close()
"""


@RAY
def test_a_ray_of_our_own_listens_on_this_machine_alone():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # the names of its sockets are limited
        done = subprocess.run(
            [sys.executable, "-c", LISTENS], env=environment | {"RAY_TMPDIR": short},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    places = json.loads(done.stdout.splitlines()[-1])
    assert len(places) > 5 and {p.removeprefix("::ffff:") for p in places} == {"127.0.0.1"}


@RAY
def test_ray_refuses_what_no_node_has(folder):
    with pytest.raises(ValueError, match="no node of the Ray cluster has CPU 1, GPU 9"):
        run_suite(folder.file, Console(), on="ray", resources={"gpus": 9, "cpus": 1})
    with pytest.raises(ValueError, match="--extra big must be an amount of a Ray resource"):
        run_suite(folder.file, Console(), on="ray", resources={"extra": ("big=much",)})
    assert not folder.out.exists()


@pytest.mark.slow
@RAY
def test_ray_runs_no_more_at_once_than_fit(folder):
    """Three processors: six runs wait for them in Ray's queue, not in ours."""
    folder.write(yaml.safe_load((folder.path / "recipe.yaml").read_text()) | {"sft": None})
    folder.run("ray")
    together = [int(n) for n in (folder.control / "parallel.txt").read_text().split()]
    assert folder.status == 0 and len(together) == 6 and max(together) <= 3


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

    name = "job 7"
    cancelled = False

    def done(self):
        return False

    def result(self):
        raise AssertionError

    def cancel(self):
        self.cancelled = True


def test_a_run_that_still_waits_is_taken_from_the_queue(tmp_path):
    task = Queued()
    run = RemoteRun(tmp_path, task)
    assert run.pid == "job 7" and run.poll() is None and run.last_lines() == []
    run.ask_to_end()
    assert run.poll() == 0 and task.cancelled
    assert attend(tmp_path, ["false"], tmp_path, 1) == 0  # begun all the same, it does nothing
    assert not (tmp_path / "run.log").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "slrum"], "unknown place for --on 'slrum'; did you mean 'slurm'?"),
        (["--on", "slurm", "--gpus", "-1"], "`gpus` should be greater than or equal to 0, got -1"),
        (["--on", "ray", "--cpus", "0"], "`cpus` should be greater than or equal to 1, got 0"),
        (["--on", "slurm", "--hours", "0"], "`hours` should be greater than 0, got 0"),
        (["--gpus", "1"], "--gpus does not apply to --on local, only to slurm and ray."),
        (["--on", "ray", "--hours", "2"], "--hours does not apply to --on ray, only to slurm."),
        (["--on", "ray", "--partition", "p"], "--partition does not apply to --on ray"),
        (["--on", "slurm", "--extra", "account"], "--extra needs NAME=VALUE, got 'account'"),
    ],
)  # fmt: skip
def test_bad_arguments_before_anything_starts(folder, arguments, message, capsys):
    assert main(["suite", str(folder.file), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not folder.out.exists()


@pytest.mark.parametrize(("on", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_told_with_its_remedy(folder, on, package, monkeypatch):
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == package else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(ValueError, match=rf"needs the package {package}: pip install 'trustclip\["):
        run_suite(folder.file, Console(), on=on)
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
