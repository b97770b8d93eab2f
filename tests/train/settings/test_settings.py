"""A setting is declared once: what else is true of it stands beside its type."""

from typing import Annotated

from trustclip.logs.identity import Marks, essential
from trustclip.logs.reader import read_run
from trustclip.support.checked import checked
from trustclip.support.jsonl import plain
from trustclip.support.marks import Neutral, Trl, fields_of, marked
from trustclip.train.configs import grpo_config
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import (
    OF_COMMAND,
    Recipe,
    RecipeEval,
    RLStage,
    SFTStage,
)
from trustclip.train.trainers import DurableGRPOConfig

#: Settings that have a TRL name and reach it in another form: 0 means that none is saved.
TRANSLATED = {"save_steps"}


def test_what_is_marked_for_trl_is_what_trl_has():
    from trustclip.engines.trl.upstream import SFTConfig

    ours = set(fields_of(DurableGRPOConfig))
    assert set(marked(RLStage, Trl)) <= ours
    assert set(marked(SFTStage, Trl)) <= set(fields_of(SFTConfig))
    assert set(fields_of(RLStage)) & ours - TRANSLATED == set(marked(RLStage, Trl))
    assert set(fields_of(SFTStage)) & set(fields_of(SFTConfig)) - TRANSLATED == set(
        marked(SFTStage, Trl)
    )


def test_a_new_setting_is_one_line(tmp_path):
    """It reaches TRL, and its run says of it what its marks say."""

    @checked
    class More(RLStage):
        adam_beta2: Annotated[float, Trl()] = 0.95
        colour: Annotated[str, Neutral("the colour of its curve")] = "blue"

    args = grpo_config(More(dataset="arithmetic", adam_beta2=0.9), tmp_path)
    assert args.adam_beta2 == 0.9
    stages = {
        "blue": More(dataset="a.csv"),
        "red": More(dataset="a.csv", colour="red"),
    }
    kept = [
        read_run(RunDirectory(tmp_path / name, "rl", stage).path).essential
        for name, stage in stages.items()
    ]
    assert kept[0] == kept[1]
    assert {"adam_beta2", *marked(RLStage, Trl)} == set(marked(More, Trl))


def stored(kind, settings):
    """What a run directory keeps of plain settings of a class."""
    return essential(settings, Marks.of(kind, settings))


def test_runs_are_told_apart_by_what_results_depend_on():
    rl = plain(RLStage(dataset="a.csv", max_steps=3, exclude="none"))
    assert stored(RLStage, {**rl, "report_to": "wandb", "save_steps": 9}) == stored(RLStage, rl)
    for name, other in (
        ("seed", 1),
        ("method", {"name": "clip"}),
        ("max_steps", 4),
        ("top_p", 0.9),
    ):
        assert stored(RLStage, {**rl, name: other}) != stored(RLStage, rl), name
    assert stored(RLStage, {"reward": "correct"}) == {"reward": "correct"}
    assert Marks.of(Recipe, {"sft": {}, "rl": {}}).extends == "rl.max_steps"


def test_a_stage_is_the_settings_of_its_command():
    for command, stage in (("sft", SFTStage), ("rl", RLStage)):
        added = set(fields_of(OF_COMMAND[command])) - set(fields_of(stage))
        assert issubclass(OF_COMMAND[command], stage)
        assert added == {"model", "output_dir", "seed", "dtype", "changed_inputs"}
    assert set(fields_of(RecipeEval)) - set(fields_of(OF_COMMAND["eval"])) == {"every"}
