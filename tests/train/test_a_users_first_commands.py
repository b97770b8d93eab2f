"""What a newcomer meets first: messages, help, folders, tables, and a run that did nothing."""

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
import yaml
from rich.table import Table
from synthetic_runs import Spec, make_run
from test_recipe_files import GOOD

from trustclip.cli.main import main
from trustclip.cli.options import help_of
from trustclip.engines.trl.passthrough import complaints
from trustclip.support.terminal import Terminal, parts
from trustclip.train.files import with_folder
from trustclip.train.settings.stages import EvalSettings, RLSettings, SFTSettings


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "mine.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(GOOD) | {"output_dir": "runs/mine", "seed": 0}))
    return path


def test_a_misspelt_field_of_trl_may_be_a_setting_of_the_recipe():
    pytest.importorskip("trl")
    own = {"learning_rate", "use_vllm"}
    found = dict(complaints({"learning_rte": 1, "use_vlm": True, "vllm_mode": "colocat"}, own))
    assert "did you mean `learning_rate`, outside `trl`?" in found["learning_rte"]
    assert "`use_vllm`, outside `trl`?" in found["use_vlm"]
    assert found["vllm_mode"].endswith("Did you mean 'colocate'?")


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, None),
        ({"rl.max_steps": 4}, None),
        ({"seed": 0}, None),
        ({"seed": 1}, "runs/mine-seed1"),
        ({"method": "clip"}, "runs/mine-clip"),
        ({"method": "clip", "method.epsilon": 0.1, "seed": 2}, "runs/mine-clip-epsilon0.1-seed2"),
        ({"method": {"name": "clip", "epsilon": 0.3}}, "runs/mine-clip-epsilon0.3"),
        ({"method": "my/own.py:Mine"}, "runs/mine-Mine"),
        ({"method.delta": "{controller: target_gate, share: 0.02}"},
         "runs/mine-atr-delta_controller_target"),
        ({"seed": 1, "output_dir": "elsewhere"}, "elsewhere"),
    ],
    ids=str,
)  # fmt: skip
def test_another_method_or_seed_has_a_folder_of_its_own(recipe, changes, folder):
    assert with_folder(recipe, changes).get("output_dir") == folder


def test_a_method_that_the_file_states_itself_stays_in_its_folder(recipe):
    stated = yaml.safe_load(recipe.read_text())["rl"]["method"]
    assert "output_dir" not in with_folder(recipe, {"method": stated["name"]})
    assert "output_dir" not in with_folder(recipe, {"method.delta": stated["delta"]})


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "table3-tiny"], "is a suite, not a recipe: trustclip suite"),
        (["suite", "tiny"], "is a recipe, not a suite: trustclip run"),
    ],
)
def test_a_recipe_and_a_suite_are_told_apart(argv, words, capsys):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize("cls", [SFTSettings, RLSettings, EvalSettings])
def test_help_begins_with_what_must_be_given(cls):
    fields = dataclasses.fields(cls)
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    said = help_of(cls, "command")
    shown = [flag.replace("-", "_") for flag in re.findall(r"^  --([a-z-]+)", said, re.M)]
    assert len(needed) == 3 and {*shown[:3]} == needed and said.count("(required)") == 3
    assert said.count("usage:") == 1


def test_a_wide_table_is_cut_into_parts_and_no_cell_is():
    table = Table("score", "method", *(f"column {n}" for n in range(8)), box=None, pad_edge=False)
    cells = [f"{n}.0 [{n}.1, {n}.2]" for n in range(8)]
    table.add_row("Mean@8", "a-run-of-mine-with-a-name-that-is-far-too-long-for-a-terminal", *cells)
    for width in (80, 60):
        out = io.StringIO()
        for part in parts(table, width, keys=2):
            Terminal(file=out, width=width).print(part)
        text = out.getvalue()
        assert all(cell in text for cell in cells)
        assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert [*parts(table, 400, keys=2)] == [table]


def without_updates_that_moved(folder: Path) -> Path:
    """A made-up run in which every reward was equal: nothing of the gate is logged."""
    run = make_run(folder, Spec({"name": "atr", "delta": 0.07}, steps=8))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        for key in [*row]:
            if key.startswith("trustclip/") or key == "grad_norm":
                del row[key]
        if row.get("stage") == "rl":
            row |= {"reward": 0.0, "frac_reward_zero_std": 1.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_explain_of_a_run_that_could_not_move(tmp_path, capsys):
    assert main(["explain", str(without_updates_that_moved(tmp_path / "run"))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "in every group all rewards were equal" in said
    assert "the policy did not move" in said and "Entropy fell" not in said
    assert "In 100 % of groups" in said and "take problems that are solved sometimes" in said


def test_explain_of_an_evaluation(tmp_path, capsys):
    run = make_run(tmp_path / "run", Spec({"name": "atr", "delta": 0.07}, steps=8))
    for name in ("config.yaml", "summary.json"):
        load = yaml.safe_load if name.endswith("yaml") else json.loads
        content = load((run / name).read_text())
        content = {k: v for k, v in content.items() if k not in ("method", "rl")}
        (run / name).write_text(json.dumps(content | {"command": "eval"}))
    rows = (run / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in rows if json.loads(line)["stage"] == "eval"]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert main(["explain", str(run)]) == 0
    assert "It has no constraint." in capsys.readouterr().out
