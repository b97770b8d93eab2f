"""Where a demo runs: the command that was stopped goes on, and a finished demo is left alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from trustclip.support.lock import only_process
from trustclip.train import load_model
from trustclip.train import pipeline as module
from trustclip.train.files import demo_recipe
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import DemoSettings

OWN = Path("runs/demo-atr-seed0")


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder in which a demo of these settings would run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        module, "run_recipe", lambda recipe, _: SimpleNamespace(path=recipe.output_dir)
    )
    return lambda **given: module.demo(DemoSettings(**given), Console(quiet=True)).path


def begun(settings: DemoSettings) -> RunDirectory:
    return RunDirectory(OWN, "run", demo_recipe(settings, OWN))


def test_a_stopped_demo_goes_on_in_its_folder(taken: Any) -> None:
    assert taken() == OWN
    begun(DemoSettings())
    assert taken() == OWN and taken(generations=2) == Path(f"{OWN}-2")
    assert taken(seed=1) == Path("runs/demo-atr-seed1")
    assert taken(model="smollm2") == Path("runs/demo-smollm2-atr-seed0")


def test_a_demo_that_is_finished_or_runs_is_left_alone(taken: Any) -> None:
    run = begun(DemoSettings())
    with only_process(OWN):
        assert taken() == Path(f"{OWN}-2")
    run.summarize({"finished": True})
    assert taken() == Path(f"{OWN}-2")


@pytest.mark.parametrize("content", ["", "a: [", "command: run"])
def test_a_folder_of_something_else_is_left_alone(taken: Any, content: str) -> None:
    OWN.mkdir(parents=True)
    assert taken() == Path(f"{OWN}-2")
    (OWN / "config.yaml").write_text(content)
    assert taken() == Path(f"{OWN}-2")


def test_a_demo_says_what_it_trains_and_where(
    taken: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    module.demo(DemoSettings(model="smollm2"), Console(width=200))
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "SmolLM2-135M-Instruct, a pretrained language model, learns sums under atr, in "
        "runs/demo-smollm2-atr-seed0"
    )


def test_a_model_is_loaded_by_a_public_name() -> None:
    model, tokenizer = load_model("tiny", "plain")
    assert model.config.vocab_size == len(tokenizer) and tokenizer.chat_template
