"""`check`, `prepare`, `train`: the last one reads no setting, of a command and of a recipe."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_folder import tiny_folder

from trustclip.train import pipeline, rl, sft
from trustclip.train.files import Source, build, preset
from trustclip.train.settings.stages import (
    Place,
    Problems,
    Recipe,
    RecipeEval,
    RLSettings,
    RLStage,
    SFTSettings,
)

QUIET = Console(quiet=True)
SMALL: dict[str, Any] = dict(max_completion_length=4, max_steps=2, limit=64)


@contextlib.contextmanager
def unreadable_settings():
    def refuse(settings: Any, name: str) -> None:
        raise AssertionError(f"{type(settings).__name__}.{name} is read")

    with pytest.MonkeyPatch.context() as patch:
        for cls in (Place, Problems):
            patch.setattr(cls, "__getattribute__", refuse)
        yield


@pytest.fixture
def blind(monkeypatch):
    """From each training on, settings cannot be read; the names of those that ran."""
    trained = []

    def without_settings(module):
        original = module.train

        def train(*arguments: Any) -> None:
            with unreadable_settings():
                original(*arguments)
            trained.append(module.__name__)

        monkeypatch.setattr(module, "train", train)

    for module in (sft, rl, pipeline):
        without_settings(module)
    return trained


def settings_of(cls: Any, command: str, folder: Path, **changes: Any) -> Any:
    place = {"model": str(tiny_folder(folder / "model")), "output_dir": folder / "run"}
    return build(cls, preset(command, "tiny"), Source(changes={**place, **changes}))


def test_reinforcement_learning(tmp_path, blind):
    run = rl.rl(settings_of(RLSettings, "rl", tmp_path, **SMALL, tokens_every=1), QUIET)
    assert blind == ["trustclip.train.rl"] and run.summary["finished"]


@pytest.mark.slow
def test_fine_tuning(tmp_path, blind):
    run = sft.sft(settings_of(SFTSettings, "sft", tmp_path, max_steps=1), QUIET)
    assert blind == ["trustclip.train.sft"] and run.summary["finished"]


def test_a_recipe_with_evaluations(tmp_path, blind):
    settings = settings_of(RLSettings, "rl", tmp_path, **SMALL)
    stage = RLStage(**{name: getattr(settings, name) for name in RLStage.__dataclass_fields__})
    tests = RecipeEval(tasks="arithmetic", limit=2, k=2, max_tokens=4, every=1)
    place: dict[str, Any] = {name: getattr(settings, name) for name in Place.__dataclass_fields__}
    run = pipeline.run_recipe(Recipe(name="r", rl=stage, eval=tests, **place), QUIET)
    assert blind == ["trustclip.train.pipeline"] and run.summary["final"]
