"""A release of TRL without what the engine relies on is refused; overrides are looked for."""

import inspect
import warnings
from types import ModuleType

import pytest
from transformers import Trainer
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl_runs import needs

from trustclip.engines.trl import trainer, upstream
from trustclip.engines.trl.recording.records import Recorded

SOURCE = inspect.getsource(grpo_trainer)


def test_every_overridden_method_is_looked_for():
    ours = (trainer.ConstrainedGRPOTrainer, Recorded)
    own = {name for kind in ours for name, value in vars(kind).items() if callable(value)}
    # Others are Transformers', in whatever trainer.
    overridden = own & vars(GRPOTrainer).keys() - {*dir(Trainer)}
    assert overridden and overridden <= {*upstream.RELIED_ON}


@needs("trl>=1.15")
def test_the_installed_release_has_every_name():
    assert upstream.unmentioned(SOURCE) == []


def test_a_release_whose_asynchronous_trainer_lacks_a_name_is_refused(monkeypatch):
    source = " ".join({*upstream.RELIED_ON_ASYNC} - {"token_index"})  # as in TRL 1.10 to 1.15
    monkeypatch.setattr(inspect, "getsource", lambda _: source)
    with pytest.raises(ImportError, match=r"has no token_index, .* Install trl 1\.16\."):
        upstream.asynchronous_trainer()


def doctored(*edits: tuple[str, str]) -> type:
    """The installed `GRPOTrainer` as another release might have it: its source with edits."""
    source = SOURCE
    for before, after in edits:
        assert before in source, before
        source = source.replace(before, after)
    module = ModuleType(grpo_trainer.__name__)
    module.__package__ = "trl.trainer"
    exec(compile(source, "doctored", "exec"), vars(module))
    return vars(module)["GRPOTrainer"]


@needs("trl>=1.15")
@pytest.mark.parametrize("name", ["_calculate_rewards", "epsilon_high", "tool_mask"])
def test_a_release_without_a_name_is_refused(name):
    source = SOURCE.replace(name, f"{name[:-1]}y_")
    words = rf"trl 9\.1\.0 is not supported: its GRPOTrainer has no {name}, which .*1\.16\.$"
    with pytest.raises(ImportError, match=words):
        upstream.check_release("9.1.0", source)


@needs("trl>=1.15")
def test_a_release_with_every_name_runs_with_a_notice():
    with pytest.warns(UserWarning, match=r"trl 9\.1\.0 was not tested"):
        upstream.check_release("9.1.0", SOURCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upstream.check_release("1.16.3", "")  # tested: not looked into
