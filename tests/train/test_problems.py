"""Problems of a recipe: training and test problems apart, and enough of them to train at all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import trustclip
from rich.console import Console
from tiny_folder import tiny_folder

from trustclip.train import models, pipeline
from trustclip.train.data import enough, further_tests, overlap_text, recipe_problems
from trustclip.train.files import Source, build, preset
from trustclip.train.preflight.dry_run import dry_run
from trustclip.train.rl import rl
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import Recipe, RecipeEval, RLSettings, RLStage, SFTStage


def tiny_rl() -> RLSettings:
    return build(RLSettings, preset("rl", "tiny"), Source())


def written(path: Path, texts: list[str]) -> str:
    rows = [
        {"id": f"{path.stem}{k}", "problem": text, "answer": "4", "solution": "so"}
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


WORDS = [
    "tiger",
    "coffee",
    "orange",
    "yellow",
    "planet",
    "winter",
    "summer",
    "garden",
    "window",
    "bottle",
    "candle",
    "pepper",
]
FORMS = (
    "How many vowels are in the word '{}'?",
    "How many letters stand before the letter e in the word '{}'?",
    "How many letters has the word '{}'?",
    "Spell '{}' backwards: which number has its first vowel?",
    "Write the word '{}' twice: how many consonants are there?",
)


def test_of_a_templated_set_only_copies_are_left_out_and_near_problems_are_listed(tmp_path):
    texts = [form.format(word) for form in FORMS for word in WORDS]
    assert len(texts) == 60
    tests = [texts[k].replace(" word", "\n word") for k in (0, 24, 59)]  # three copies
    tests += [form.format("silver") for form in FORMS[:2]]  # with the answer of all others
    made = recipe(tmp_path, texts, tests)
    data = data_of(made)
    left_out = {f"train{k}" for k in range(60)} - {problem.id for problem in data.training}
    assert left_out == {"train0", "train24", "train59"}
    overlap = data.overlap["rl"]
    assert overlap["problems"] == 3 and overlap["tests"] == {"held": ["held0", "held1", "held2"]}
    near = overlap["near"]
    assert near["problems"] >= 20 and near["pairs"][0]["test_id"].startswith("held")
    copies, likes = overlap_text(data.overlap)
    assert copies == (
        "rl: 3 training problems that are also test problems (3 of held) are left out."
    )
    assert f"{near['problems']} training problems are like a test problem" in likes
    assert "`exclude: tests,near` leaves them out" in likes
    strict = data_of(
        replace(made, rl=replace(made.rl, exclude="tests,near"), output_dir=tmp_path / "strict")
    )
    assert len(strict.training) == 57 - near["problems"]
    assert strict.overlap["rl"]["near"]["problems"] == 0


def test_none_trains_on_them_and_says_so(tmp_path):
    made = recipe(tmp_path, ["What is $2+2$?", "What is $7+8$?"], ["What is $2+2$?"])
    made = replace(made, rl=replace(made.rl, exclude="none"))
    data = data_of(made)
    assert len(data.training) == 2 and not data.overlap["rl"]["excluded"]
    (said,) = overlap_text(data.overlap)
    assert said.startswith("rl: 1 training problems that are also test problems (1 of held) are tr")


def test_a_training_set_that_is_the_test_set_is_refused_before_a_model_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "tiny_model", lambda *_, **__: pytest.fail("a model was made"))
    made = recipe(tmp_path, ["What is $2+2$?"], ["What is  \\(2 + 2\\)?"])
    message = r"train\.jsonl: every training problem is also a test problem"
    with pytest.raises(ValueError, match=message):
        pipeline.run_recipe(made, Console(quiet=True))
    with pytest.raises(ValueError, match=message):
        dry_run(made, Console(quiet=True))
    assert not (tmp_path / "run" / "sft").exists()


def test_fine_tuning_leaves_test_problems_out_as_well(tmp_path):
    made = recipe(tmp_path, ["What is $1+2$?"], ["What is $2+2$?"])
    tuning = written(tmp_path / "solved.jsonl", ["What is $2+2$?", "What is $5+5$?"])
    data = data_of(replace(made, sft=SFTStage(dataset=tuning)))
    assert [problem.problem for problem in data.tuning] == ["What is $5+5$?"]
    assert data.overlap["sft"]["tests"] == {"held": ["held0"]}


def test_further_test_sets_are_named(tmp_path):
    further = written(tmp_path / "further.jsonl", ["What is $1+2$?"])
    made = recipe(tmp_path, ["What is $1+2$?", "What is $5+5$?"], ["What is $2+2$?"])
    data = data_of(replace(made, rl=replace(made.rl, exclude=f"tests, {further}")))
    assert [problem.problem for problem in data.training] == ["What is $5+5$?"]
    with pytest.raises(ValueError, match=r"unknown problem source 'amc32' .did you mean 'amc23'"):
        further_tests(replace(made.rl, exclude="amc32"), RunDirectory(tmp_path / "2", "run", made))


def test_generated_problems_are_disjoint_without_a_check():
    data = recipe_problems(
        Recipe(
            name="r",
            model="tiny",
            output_dir=Path("unused"),
            rl=RLStage(dataset=preset("rl", "tiny")["dataset"]),
            eval=RecipeEval(tasks=preset("eval", "tiny")["tasks"]),
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
    assert "too few problems, 4: each generation takes 8 different ones" in done.stderr
    assert "= 16 x 4 / 8" in done.stderr
    assert not (tmp_path / "run" / "sft").exists()  # no model was made
    settings = tiny_rl()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        ValueError, match=r"few problems, 4: .* 24 .* x 3 processes .* 16 x 4 x 3 / 8"
    ):
        enough([None] * 4, settings)  # type: ignore[list-item]


def test_a_recipe_with_too_few_problems_is_refused_before_fine_tuning(tmp_path):
    made = recipe(tmp_path, ["What is $1+2$?"], ["What is $2+2$?"])
    large = replace(made.rl, per_device_train_batch_size=8)
    made = replace(made, rl=large, sft=SFTStage(dataset="arithmetic-primer"))
    with pytest.raises(ValueError, match="too few problems, 1: each generation takes 2"):
        pipeline.run_recipe(made, Console(quiet=True))
    assert not (tmp_path / "run" / "sft").exists()


def test_a_training_without_an_update_is_an_error_and_saves_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("trustclip.train.rl.enough", lambda *_: None)
    few = written(tmp_path / "few.jsonl", [f"What is {k}+1?" for k in range(4)])
    settings = replace(
        tiny_rl(),
        model=str(tiny_folder(tmp_path / "model")),
        dataset=few,
        max_steps=2,
        output_dir=tmp_path / "run",
    )
    with pytest.raises(ValueError, match="training made no update"):
        rl(settings, Console(quiet=True))
    assert not (tmp_path / "run" / "final").exists()
