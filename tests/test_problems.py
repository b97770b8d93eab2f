"""Problems of a recipe: training and test problems apart, and enough of them to train at all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from test_cli import trustclip

from trustclip.recipes import models, pipeline
from trustclip.recipes.files import Source, build, preset
from trustclip.recipes.preflight.dry_run import dry_run
from trustclip.recipes.problems import enough, recipe_problems
from trustclip.recipes.rl import rl
from trustclip.recipes.settings import Recipe, RecipeEval, RLSettings, RLStage, SFTStage
from trustclip.recipes.tiny import save_tiny
from trustclip.runs.card import write_card
from trustclip.runs.directory import RunDirectory

ORCHARD = "An orchard has 14 rows of apple trees and every row holds {} trees of 57 kilograms. "


def tiny_rl() -> RLSettings:
    return build(RLSettings, preset("rl", "tiny"), Source())


def written(path: Path, texts: list[str]) -> str:
    rows = [
        {"id": f"{path.stem}{k}", "problem": text, "answer": str(k), "solution": "so"}
        for k, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def recipe(folder: Path, train: list[str], test: list[str], **changes) -> Recipe:
    rl = RLStage(
        dataset=written(folder / "train.jsonl", train),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        num_generations=4,
    )
    evaluation = RecipeEval(tasks=written(folder / "held.jsonl", test))
    return replace(
        Recipe(name="r", model="tiny", output_dir=folder / "run", rl=rl, eval=evaluation), **changes
    )


def data_of(made: Recipe):
    return recipe_problems(made, RunDirectory(made.output_dir, "run", made))


def test_a_test_problem_among_the_training_problems_is_refused_before_a_model_loads(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(models, "tiny_model", lambda *_: pytest.fail("a model was made"))
    train = ["What is $1+2$?", "What is  \\(2 + 2\\)?"]
    made = recipe(tmp_path, train, ["What is $2+2$?"])
    message = r"1 of 2 training problems .*train1' is 'held0' of held.*exclude_overlap: true"
    with pytest.raises(ValueError, match=message):
        pipeline.run_recipe(made, Console(quiet=True))
    with pytest.raises(ValueError, match=message):
        dry_run(made, Console(quiet=True))
    assert not (tmp_path / "run" / "sft").exists()


def test_fine_tuning_on_a_test_problem_is_refused_as_well(tmp_path):
    made = recipe(tmp_path, ["What is $1+2$?"], ["What is $2+2$?"])
    tuning = written(tmp_path / "solved.jsonl", ["What is $2+2$?", "What is $5+5$?"])
    with pytest.raises(ValueError, match=r"1 of 2 training problems \(sft\.dataset"):
        data_of(replace(made, sft=SFTStage(dataset=tuning)))


def test_overlap_is_left_out_on_request_reworded_or_not_and_reported(tmp_path):
    text = ORCHARD.replace("{}", "23")
    train = [text + "Find the mass.", "What is $2+2$?", "What is $2-2$?", "What is $7+8$?"]
    test = [text + "How heavy is the harvest?", "What is $2+2$?"]
    made = recipe(tmp_path, train, test, exclude_overlap=True)
    data = data_of(made)
    assert [problem.id for problem in data.training] == ["train2", "train3"]
    assert data.overlap == {
        "reworded": True,
        "left_out": {"rl": {"problems": 2, "tests": {"held": 2}}},
    }
    run = RunDirectory.resumed(made.output_dir, "run", made)
    run.summarize({"overlap": data.overlap})
    assert "reworded, were left out (2)" in write_card(run.path).read_text()


def test_equal_texts_with_another_sign_are_no_overlap(tmp_path):
    data = data_of(recipe(tmp_path, ["What is 3 + 1 - 2?"], ["What is 3 - 1 + 2?"]))
    assert len(data.training) == 1 and data.overlap == {"reworded": False, "left_out": {}}


def test_generated_problems_are_disjoint_without_a_check():
    data = recipe_problems(
        Recipe(
            name="r",
            model="tiny",
            output_dir=Path("unused"),
            rl=RLStage(dataset=preset("rl", "tiny")["dataset"]),
            eval=RecipeEval(tasks=preset("eval", "tiny")["tasks"]),
            exclude_overlap=True,
        ),
        None,  # type: ignore[arg-type]
    )
    texts = {problem.problem for problem in data.training}
    assert len(texts) == 1024
    assert texts.isdisjoint(problem.problem for problem in data.tests["arithmetic"])


def test_two_tasks_of_one_name_are_refused(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    held = written(other / "held.jsonl", ["What is $9+9$?"])
    made = recipe(tmp_path, ["What is $1+2$?"], ["What is $2+2$?"])
    assert made.eval is not None
    twice = replace(made.eval, tasks=f"{made.eval.tasks},{held}")
    with pytest.raises(ValueError, match="two tasks have the name 'held'"):
        data_of(replace(made, eval=twice))


def test_fewer_problems_than_a_generation_takes_are_refused_with_the_arithmetic(
    tmp_path, monkeypatch
):
    data = written(tmp_path / "few.jsonl", [f"What is {k}+1?" for k in range(4)])
    args = ("--preset", "tiny", "--dataset", data, "--max-steps", "2")
    done = trustclip("rl", *args, "--output-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "4 problems, but a generation takes 8 different ones" in done.stderr
    assert "= 16 x 4 / 8" in done.stderr
    assert not (tmp_path / "run" / "sft").exists()  # no model was made
    settings = tiny_rl()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"4 problems, .* 24 .* x 3 processes .* 16 x 4 x 3 / 8"):
        enough([None] * 4, settings)  # type: ignore[list-item]


def test_a_recipe_with_too_few_problems_is_refused_before_fine_tuning(tmp_path):
    made = recipe(tmp_path, ["What is $1+2$?"], ["What is $2+2$?"])
    large = replace(made.rl, per_device_train_batch_size=8)
    made = replace(made, rl=large, sft=SFTStage(dataset="arithmetic-primer"))
    with pytest.raises(ValueError, match="1 problems, but a generation takes 2"):
        pipeline.run_recipe(made, Console(quiet=True))
    assert not (tmp_path / "run" / "sft").exists()


def test_a_training_without_an_update_is_an_error_and_saves_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("trustclip.recipes.rl.enough", lambda *_: None)
    few = written(tmp_path / "few.jsonl", [f"What is {k}+1?" for k in range(4)])
    settings = replace(
        tiny_rl(),
        model=str(save_tiny(tmp_path / "model")),
        dataset=few,
        max_steps=2,
        output_dir=tmp_path / "run",
    )
    with pytest.raises(ValueError, match="training made no update"):
        rl(settings, Console(quiet=True))
    assert not (tmp_path / "run" / "final").exists()
