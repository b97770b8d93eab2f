"""Sinks: a view of metrics.jsonl that may be missing or break, and never stops a run."""

import math
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trustclip.train.watch.sinks import missing, numbers, open_sink, viewer

ROWS = [
    {"stage": "sft", "step": 8, "loss": 4.5, "mean_token_accuracy": 0.25},
    {"stage": "rl", "step": 1, "reward": 0.5, "trustclip/gated": 0.125, "grad_norm": math.nan},
    {"stage": "eval", "step": 0, "task": "aime24", "mean@8": 0.25, "problems": 30},
    {"stage": "notice", "step": 1, "notice": "truncated", "text": "plain words"},
]
WANTED = [
    ("sft/loss", 4.5, 8),
    ("sft/mean_token_accuracy", 0.25, 8),
    ("rl/reward", 0.5, 1),
    ("rl/trustclip/gated", 0.125, 1),
    ("eval/aime24/mean@8", 0.25, 0),
    ("eval/aime24/problems", 30, 0),
]
NAMES = ["trackio", "wandb", "tensorboard"]
CONFIG = {"name": "tiny", "rl": {"method": "atr", "output_dir": Path("runs/tiny")}}


class Seen:
    """What a stand-in package was told."""

    def __init__(self):
        self.opened, self.points, self.closed, self.environment = {}, [], 0, {}


def stand_in(name, monkeypatch, fail_at=None):
    """Put a package in place of the real one; its log fails from the ``fail_at``-th call on."""
    seen, calls = Seen(), [0]

    def called():
        calls[0] += 1
        if fail_at is not None and calls[0] >= fail_at:
            raise OSError("no space\nleft on device")

    def opened(*args, **kwargs):
        seen.opened = {"args": args, **kwargs}
        seen.environment = dict(os.environ)

    def close():
        seen.closed += 1

    def log(values, step=None):
        called()
        values = dict(values)
        stage = next(iter(values)).split("/")[0]
        step = values.pop(f"{stage}/step", step)
        seen.points += [(key, value, step) for key, value in values.items()]

    class Writer:
        def __init__(self, folder):
            opened(folder)

        def add_text(self, tag, text):
            seen.opened["config"] = text

        def add_scalar(self, tag, value, step):
            called()
            seen.points.append((tag, value, step))

        def close(self):
            close()

    module: Any = ModuleType(name)
    run = SimpleNamespace(log=log, finish=close, define_metric=lambda *args, **kwargs: None)
    module.init = lambda **kwargs: (opened(**kwargs), run)[1]
    module.finish = close
    module.Settings = lambda **kwargs: kwargs
    module.SummaryWriter = Writer
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, module
    )
    for variable in ("TRACKIO_DIR", "WANDB_MODE", "WANDB_ERROR_REPORTING"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable, "")  # so that what the sink sets is undone
        monkeypatch.delenv(variable)
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_rows_arrive_under_unique_names_with_their_step(name, monkeypatch, tmp_path):
    seen = stand_in(name, monkeypatch)
    sink = open_sink(name, "tiny", CONFIG, tmp_path)
    for row in ROWS:
        sink.log(row)
    sink.close()
    assert seen.points == WANTED and seen.closed == 1
    assert str(tmp_path / name) in str(seen.opened) + seen.environment.get("TRACKIO_DIR", "")
    assert "atr" in str(seen.opened["config"])


@pytest.mark.parametrize("name", NAMES)
def test_a_sink_that_breaks_warns_once_and_stops_nothing(name, monkeypatch, tmp_path):
    seen = stand_in(name, monkeypatch, fail_at=3)
    sink = open_sink(name, "tiny", CONFIG, tmp_path)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for row in ROWS * 3:
            sink.log(row)
        sink.close()
    assert len(heard) == 1
    text = str(heard[0].message)
    assert name in text and "OSError: no space left on device" in text and "metrics.jsonl" in text
    assert 0 < len(seen.points) < len(WANTED)


@pytest.mark.parametrize("name", [*NAMES, "mlflow"])
def test_a_missing_package_is_one_clear_error_before_training(name, monkeypatch, tmp_path):
    inner = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow.entities"}
    monkeypatch.setitem(sys.modules, inner.get(name, name), None)
    for variable in ("TRACKIO_DIR", "WANDB_MODE", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(variable, "offline")  # what the sink sets by itself would stay
    with pytest.raises(ValueError, match=rf"pip install {name}, or set the sink"):
        open_sink(name, "tiny", CONFIG, tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    assert "pip install" in (missing(name) or "") and missing("none") is None


def test_a_package_that_cannot_start_is_one_clear_error(monkeypatch, tmp_path):
    stand_in("wandb", monkeypatch)
    wandb: Any = sys.modules["wandb"]
    wandb.init = lambda **_: 1 / 0
    with pytest.raises(ValueError, match=r"'wandb' cannot start: ZeroDivisionError"):
        open_sink("wandb", "tiny", CONFIG, tmp_path)


def test_offline_unless_the_user_says_otherwise(monkeypatch, tmp_path):
    seen = stand_in("wandb", monkeypatch)
    open_sink("wandb", "tiny", CONFIG, tmp_path)
    assert seen.environment["WANDB_MODE"] == "offline"
    assert seen.environment["WANDB_ERROR_REPORTING"] == "false"
    monkeypatch.setenv("WANDB_MODE", "online")
    open_sink("wandb", "tiny", CONFIG, tmp_path)
    assert seen.environment["WANDB_MODE"] == "online"


def test_a_continued_run_keeps_its_identity(monkeypatch, tmp_path):
    seen = stand_in("wandb", monkeypatch)
    identities = []
    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        open_sink("wandb", "tiny", CONFIG, folder)
        identities.append(seen.opened["id"])
    assert identities[0] == identities[1] != identities[2]


def test_only_finite_numbers_leave_the_row():
    row = {"stage": "rl", "step": 3, "a": 1, "b": math.inf, "c": None, "d": "x", "e": 0.5}
    assert numbers(row) == {"rl/a": 1, "rl/e": 0.5}


def test_no_sink_imports_nothing(tmp_path):
    before = set(sys.modules)
    sink = open_sink("none", "tiny", CONFIG, tmp_path)
    sink.log(ROWS[0])
    sink.close()
    assert set(sys.modules) == before and list(tmp_path.iterdir()) == []


def test_the_command_that_shows_a_sink_names_its_folder(monkeypatch, tmp_path):
    folder = tmp_path / "my run"
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    assert viewer("none", folder) is None
    assert viewer("trackio", folder) == (
        f"TRACKIO_DIR='{folder}/trackio' trackio show --project trustclip"
    )
    assert viewer("wandb", folder) == f"wandb sync '{folder}/wandb'/wandb/offline-run-*"
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    assert viewer("trackio", folder) == "TRACKIO_DIR=elsewhere trackio show --project trustclip"
