"""A setting is declared once: what else is true of it stands beside its type."""

from typing import Annotated

from trustclip.logs.identity import BEFORE, NEUTRAL, essential
from trustclip.logs.writing.extension import LENGTH
from trustclip.support.checked import checked
from trustclip.support.marks import Neutral, Since, Trl, fields_of, marked
from trustclip.train.settings.stages import (
    OF_COMMAND,
    EvalSettings,
    Recipe,
    RecipeEval,
    RLStage,
    SFTStage,
)

#: Settings that have a TRL name and reach it in another form: 0 means that none is saved.
TRANSLATED = {"save_steps"}


def test_what_is_marked_for_trl_is_what_trl_has():
    from trustclip.engines.trl.config import ConstrainedGRPOConfig
    from trustclip.engines.trl.upstream import GRPOConfig, SFTConfig

    ours, theirs = set(fields_of(ConstrainedGRPOConfig)), set(fields_of(GRPOConfig))
    for name, mark in marked(RLStage, Trl).items():
        assert name in ours and mark.added == (name not in theirs), name
    assert set(marked(SFTStage, Trl)) <= set(fields_of(SFTConfig))
    assert set(fields_of(RLStage)) & ours - TRANSLATED == set(marked(RLStage, Trl))
    assert set(fields_of(SFTStage)) & set(fields_of(SFTConfig)) - TRANSLATED == set(
        marked(SFTStage, Trl)
    )


def test_a_new_setting_is_one_line(tmp_path):
    """It reaches TRL, changes no identity of a run where it says so, and has its option."""
    from trustclip.train.configs import grpo_config

    @checked
    class More(RLStage):
        adam_beta2: Annotated[float, Trl()] = 0.95
        colour: Annotated[str, Neutral("the colour of its curve")] = "blue"

    args = grpo_config(More(dataset="arithmetic", adam_beta2=0.9), tmp_path)
    assert args.adam_beta2 == 0.9
    assert marked(More, Neutral)["colour"].why == "the colour of its curve"
    assert {"adam_beta2", *marked(RLStage, Trl)} == set(marked(More, Trl))


def test_runs_are_told_apart_by_what_results_depend_on():
    assert set(NEUTRAL) == {n for c in (Recipe, SFTStage, RLStage) for n in marked(c, Neutral)}
    marks = {n: m for c in (SFTStage, RLStage, EvalSettings) for n, m in marked(c, Since).items()}
    assert set(BEFORE) == set(marks)
    assert all(
        marks[name].unchanged(value) or value in (None, {}) for name, value in BEFORE.items()
    )
    assert not set(NEUTRAL) & {"method", "seed", "max_steps", "learning_rate", "dataset"}
    assert BEFORE["exclude"] == "none" and BEFORE["split"] is None
    assert LENGTH == {"sft": "max_steps", "rl": "max_steps", "run": "rl.max_steps"}
    old = {"rl": {"dataset": "a.csv", "max_steps": 3}, "eval": {"tasks": "b.csv"}}
    rl = {"sampler": {"dtype": "float32", "lag": 0}, "columns": {}, "split": None}
    new = {"rl": {**old["rl"], **rl}, "eval": {**old["eval"], "reward": "correct"}}
    assert essential(old) == essential(new)
    assert essential({"rl": {"reward": "correct"}}) == {"rl": {"reward": "correct"}}
    assert essential({"command": "eval", "reward": "correct"}) == {"command": "eval"}


def test_a_stage_is_the_settings_of_its_command():
    for command, stage in (("sft", SFTStage), ("rl", RLStage)):
        added = set(fields_of(OF_COMMAND[command])) - set(fields_of(stage))
        assert issubclass(OF_COMMAND[command], stage)
        assert added == {"model", "output_dir", "seed", "dtype"}
    assert set(fields_of(RecipeEval)) - set(fields_of(OF_COMMAND["eval"])) == {"every"}
