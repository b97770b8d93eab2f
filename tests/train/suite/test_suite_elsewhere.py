"""Suites on Slurm: the stand-in runs in real jobs of submitit."""

import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from patience import until
from test_suite import Folder

from trustclip.cli.main import main
from trustclip.train.suite.launchers.slurm import Resources, Slurm, attend, resources_of

NO_GPU = {"gpus": 0, "cpus": 1}


class Elsewhere(Folder):
    def run(self, **options: Any):
        return super().run(on="slurm", resources=NO_GPU, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Elsewhere(tmp_path, monkeypatch)


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


def test_a_job_that_begins_after_it_was_taken_from_the_queue_does_nothing(tmp_path):
    (tmp_path / "request.txt").write_text("end")
    assert attend(tmp_path, ["false"], tmp_path, 1) == 0
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
    with pytest.raises(ValueError, match="finds no sbatch and srun here"):
        Slurm(Resources())


@pytest.mark.parametrize(("hours", "minutes", "save"), [(1, 60, 600), (0.1, 6, 180)])
def test_a_job_is_told_ten_minutes_before_its_end_or_halfway(monkeypatch, hours, minutes, save):
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace())
    asked = Slurm(Resources(hours=hours))._parameters("run")
    assert (asked["timeout_min"], asked["slurm_signal_delay_s"]) == (minutes, save)


def test_resources_of_the_command_line():
    given = {"gpus": None, "cpus": 2, "extra": ("account=me", "nice=5"), "hours": None}
    assert resources_of("slurm", given) == Resources(cpus=2, extra={"account": "me", "nice": 5})
    assert resources_of("local", {"gpus": None, "extra": ()}) is None
