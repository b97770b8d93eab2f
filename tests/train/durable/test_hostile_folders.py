"""A stranger's run directory (`malicious.folders`) harms nobody, and ends in a sentence."""

import re
import shutil
from pathlib import Path

import pytest
from malicious.folders import FOLDERS, newest, seen

from trustclip.cli.main import main
from trustclip.train.models import save_model
from trustclip.train.tiny import tiny_model

UPDATES = {"max-steps": 3, "save-steps": 1, "save-total-limit": 2, "tokens-every": 1}
BATCH = {"steps-per-generation": 2, "num-generations": 4, "per-device-train-batch-size": 8}


@pytest.fixture(scope="session")
def stopped(tmp_path_factory):
    """A run of three updates, as if it had been killed after the second."""
    folder = tmp_path_factory.mktemp("stopped")
    run, start = folder / "run", folder / "start"
    save_model(*tiny_model(), start)  # knows nothing, and learns from noise
    learn = ["rl", "--preset", "tiny", "--model", str(start), "--reward-noise", "0.5"]
    settings = [f"--{name}={value}" for name, value in (UPDATES | BATCH).items()]
    assert main([*learn, *settings, "--output-dir", str(run)]) == 0
    shutil.rmtree(newest(run))
    shutil.rmtree(run / "final")
    (run / "summary.json").unlink()
    return run


@pytest.fixture
def home(tmp_path, stopped, monkeypatch):
    """A folder with the run and files of the user beside it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stopped, tmp_path / "run")
    (tmp_path / "victim.txt").write_text("mine\n")
    (tmp_path / "precious").mkdir()
    for name in ("keep.txt", "config.json", "update-000099.parquet", "lock", "start.json"):
        (tmp_path / "precious" / name).write_text("precious\n")
    (tmp_path / "precious" / "step-000001").mkdir()
    (tmp_path / "precious" / "step-000001" / "weights").write_text("precious\n")
    return tmp_path


def outside(home: Path) -> dict:
    return {name: was for name, was in seen(home).items() if not name.startswith("run")}


def test_unchanged_it_continues(home, stopped, capsys):
    assert main(["resume", "run"]) == 0
    assert (home / "run" / "final" / "model.safetensors").exists()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (number % 2))
        for number, name in enumerate(FOLDERS)
    ],
)
def test_a_hostile_folder_changes_nothing_outside_and_ends_in_a_sentence(name, home, capsys):
    FOLDERS[name](home / "run")
    before = outside(home)
    status = main(["resume", "run"])
    said = capsys.readouterr().err
    assert outside(home) == before
    assert status == 0 or (status == 2 and re.search(r"trustclip resume: \S", said)), said
    assert "Traceback" not in said and not (home / "new.txt").exists()
