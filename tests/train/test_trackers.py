"""Experiment trackers that are installed get updates, evaluations and notices, offline."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from commands import trustclip
from test_recipe_files import GOOD
from tiny_folder import tiny_folder

from trustclip.logs import wandb as offline
from trustclip.support.jsonl import read_jsonl

RL = {
    "max_steps": 3,
    "steps_per_generation": 1,
    "allow_inert": True,
    "max_completion_length": 4,
    "learning_rate": 1e-3,
    "limit": 32,
}
TESTS = {"tasks": "arithmetic", "limit": 4, "k": 2, "max_tokens": 4, "every": 2}


def tracked(folder: Path, tracker: str) -> dict[str, dict[int, float]]:
    """Train in a process of its own; the numbers that its tracker must hold, by name and update."""
    content = yaml.safe_load(GOOD)
    content |= {"model": str(tiny_folder(folder / "model")), "output_dir": str(folder / "run")}
    content |= {"sft": None, "eval": TESTS, "rl": {**content["rl"], **RL, "report_to": tracker}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    places = {"WANDB_DIR": str(folder), "TENSORBOARD_LOGGING_DIR": str(folder / "events")}
    # A run of wandb in this process says in variables of its own what the next one belongs to.
    inherited = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    environment = {**inherited, **places, "WANDB_MODE": "offline"}
    done = trustclip("run", str(folder / "recipe.yaml"), env=environment)
    assert done.returncode == 0, done.stderr
    wanted: dict[str, dict[int, float]] = {}
    for row in read_jsonl(folder / "run" / "metrics.jsonl"):
        place = {"rl": "train/", "eval": f"eval/{row.get('task')}/"}.get(row["stage"], "")
        named = {f"train/notice/{row.get('notice')}": 1.0} if row["stage"] == "notice" else {}
        for name, value in row.items() if place else ():
            if isinstance(value, int | float) and name != "step":
                named[place + name.replace("@", "-at-")] = value
        for name, value in named.items():
            wanted.setdefault(name, {})[row["step"]] = value
    assert [*wanted["eval/arithmetic/mean-at-2"]] == [0, 2, 3]
    assert any(name.startswith("train/notice/") for name in wanted)
    return wanted


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    wanted = tracked(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    for name, points in wanted.items():
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == pytest.approx(points, nan_ok=True), name


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb(tmp_path):
    wanted = tracked(tmp_path, "wandb")
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found: dict[str, dict[int, float]] = {}
    for record in offline._records(file, []):
        if record.WhichOneof("record_type") == "history":
            row = offline._values(record.history.item)
            for name, value in row.items():
                found.setdefault(name, {})[row["train/global_step"]] = value
    for name, points in wanted.items():
        assert found[name] == pytest.approx(points, nan_ok=True), name
