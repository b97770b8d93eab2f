"""Rewards of one's own: through the command, in the records, and everything that goes wrong."""

import asyncio
import json
import math
from typing import Any

import pytest
import torch
import yaml
from commands import trustclip

from trustclip.support.consent import consent
from trustclip.support.jsonl import read_jsonl
from trustclip.train.files import load_recipe
from trustclip.train.problems.verify.chosen import (
    RewardError,
    check_columns,
    make_reward,
    read_rewards,
)
from trustclip.train.rewarding import keep_code
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import RLStage

CODE = '''
import math
import numpy as np

def polite(texts, tone):
    return [float("e" in text) if word != "c" else None for text, word in zip(texts, tone)]

class Long:
    """Longer is better, and it is slow."""
    def __init__(self, scale=10.0):
        self.scale = scale
    async def __call__(self, completion_ids, **_):
        return [len(ids) / self.scale for ids in completion_ids]

def broken(completions, **_):
    return [1 / 0 for _ in completions]

def short(completions, **_):
    return [1.0]

def not_a_number(completions, **_):
    return [math.nan for _ in completions]

def words(completions, **_):
    return ["good" for _ in completions]

def one(completions, **_):
    return 1.0

def mixed(completions, **_):
    return [True, None, np.float32(0.5), 2][: len(completions)]

def odd(completion_ids, **_):
    return [float(ids[0] % 2) for ids in completion_ids]

number = 3
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a model, problems and rewards in it."""
    from trustclip.train.models import save_model
    from trustclip.train.tiny import tiny_model

    path = tmp_path_factory.mktemp("own")
    save_model(*tiny_model(0), path / "model")
    (path / "mine.py").write_text(CODE)
    rows = [{"question": f"{i}+1=", "gold": str(i + 1), "mood": "abc"[i % 3]} for i in range(16)]
    (path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


COLUMNS = {"prompt": "question", "answer": "gold", "tone": "mood"}


def recipe(folder, name="recipe.yaml", **rl):
    content = {
        "name": "own",
        "model": str(folder / "model"),
        "output_dir": str(folder / name.removesuffix(".yaml")),
        "rl": {
            "dataset": str(folder / "data.jsonl"), "columns": COLUMNS, "prompt_style": "plain",
            "max_completion_length": 4, "num_generations": 4, "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1, "num_iterations": 2, "max_steps": 2, "lora_r": 0,
        } | rl,
    }  # fmt: skip
    (folder / name).write_text(yaml.safe_dump(content))
    return str(folder / name)


def test_several_rewards_with_weights_through_the_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the file is found beside the recipe
    rewards = [
        "correct",
        {"name": "mine.py:polite", "weight": 0.5},
        {"name": "mine.py:Long", "weight": -0.1, "label": "length", "scale": 4},
        {"name": "format", "weight": 0.25, "pattern": ".*SOLUTION.*"},
    ]
    file = recipe(folder, "several.yaml", reward=rewards)
    refused = trustclip("run", file)
    assert refused.returncode == 2
    told = f"would import the Python file '{folder}/mine.py', whose code then runs here"
    assert told in refused.stderr and "--allow-code" in refused.stderr
    done = trustclip("run", file, "--allow-code")
    assert done.returncode == 0, done.stderr
    run = folder / "several"
    rows = read_jsonl(run / "samples.jsonl")
    names = {"correct", "polite", "length", "format"}
    assert len(rows) == 8 and all(set(row["rewards"]) == names for row in rows)
    moods = {f"data-{i + 1}": "abc"[i % 3] for i in range(16)}
    for row in rows:
        each = row["rewards"]
        expected = {
            "polite": None if moods[row["id"]] == "c" else float("e" in row["response"]),
            "length": row["tokens"] / 4,
            "format": float("SOLUTION" in row["response"]),
        }
        assert {name: each[name] for name in expected} == pytest.approx(expected)
        total = each["correct"] + 0.5 * (each["polite"] or 0) - 0.1 * each["length"]
        assert row["reward"] == pytest.approx(total + 0.25 * each["format"], abs=1e-6)
    logged = [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert {f"rewards/{name}/mean" for name in names} <= set(logged[0])
    mean = sum(row["reward"] for row in rows) / len(rows)
    assert logged[0]["reward"] == pytest.approx(mean, abs=1e-5)
    assert (run / "code" / "mine.py").read_text() == CODE
    assert yaml.safe_load((run / "config.yaml").read_text())["rl"]["reward"][0] == {
        "name": "correct",
        "weight": 1.0,
    }
    again = trustclip("run", file, "--allow-code")
    assert again.returncode == 0 and "nothing to do" in " ".join(again.stdout.split())


def test_typed_on_the_command_line_it_needs_no_flag_and_no_answers(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Say {i}"}) + "\n" for i in range(8))
    )
    args = ("rl", "--model", "model", "--dataset", "prompts.jsonl", "--max-steps", "1",
            "--max-completion-length", "4", "--num-generations", "4", "--lora-r", "0",
            "--gradient-accumulation-steps", "1", "--prompt-style", "plain")  # fmt: skip
    done = trustclip(*args, "--reward", "mine.py:Long", "--output-dir", "typed")
    assert done.returncode == 0, done.stderr
    rows = read_jsonl(folder / "typed" / "samples.jsonl")
    assert all(
        row["gold"] is None and abs(row["reward"] - row["tokens"] / 10) < 1e-6 for row in rows
    )
    failed = trustclip(*args, "--reward", "correct", "--output-dir", "unanswered")
    assert failed.returncode == 2 and "no answer in answer," in failed.stderr
    failed = trustclip(*args, "--reward", "mine.py:broken", "--output-dir", "broken")
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    assert "the reward 'mine.py:broken' failed on 8 completions: ZeroDivisionError: division by " \
        "zero (" in failed.stderr and "mine.py, line 16)." in failed.stderr  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("short", "'mine.py:short' returned 1 numbers for 2 completions: one each is needed"),
        ("not_a_number", "'mine.py:not_a_number' returned nan for problem 'p1': a finite number"),
        ("words", "'mine.py:words' returned 'good' for problem 'p1': a finite number is needed"),
        ("one", "'mine.py:one' must return a list with a number for each completion, got 1.0"),
    ],
)
def test_a_wrong_result_is_one_sentence_with_reward_and_problem(folder, monkeypatch, name, words):
    monkeypatch.chdir(folder)
    reward = make_reward(read_rewards(f"mine.py:{name}")[0])
    given = {"prompts": ["?"] * 2, "completions": ["a", "b"], "id": ["p1", "p2"]}
    with pytest.raises(RewardError) as error:
        reward(**given)
    assert words in str(error.value)


def test_what_counts_as_a_number(folder, monkeypatch):
    monkeypatch.chdir(folder)
    reward = make_reward(read_rewards("mine.py:mixed")[0])
    found = reward(prompts=None, completions=list("abcd"))
    assert found == [1.0, None, 0.5, 2.0] and isinstance(found[0], float)
    slow: Any = make_reward(read_rewards({"name": "mine.py:Long", "scale": 2})[0])
    assert asyncio.run(slow(prompts=None, completions=["a"], completion_ids=[[1]])) == [0.5]
    vector = make_reward(read_rewards("mine.py:one")[0])
    vector._function = lambda completions, **_: torch.tensor([1.0, 0.5])
    assert vector(prompts=None, completions=["a", "b"]) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("corect", r"unknown reward 'corect'; did you mean 'correct'"),
        ([], "at least one"),
        (["correct", {"weight": 1}], "a mapping with a `name`"),
        ({"name": "format", "weight": math.inf}, "finite"),
        ({"name": "format", "weight": True}, "finite"),
        (["mine.py:polite", "other.py:polite"], "logged as 'polite': give one of them a `label`"),
        ({"name": "format", "label": "a/b"}, "one word"),
    ],
)
def test_a_wrong_setting_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        RLStage(dataset="arithmetic", reward=given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mine.py:polit", "has no 'polit'; did you mean 'polite'?"),
        ("mein.py:polite", "no file 'mein.py'; did you mean 'mine.py'?"),
        ("mine.py:number", "is not a function, but 3"),
        ("broken.py:r", "cannot load reward 'broken.py:r': SyntaxError: invalid syntax (broken.py, "
                        "line 1)."),
        ({"name": "mine.py:Long", "scael": 3}, "unknown argument 'scael' of reward mine.py:Long; "
                                               "did you mean 'scale'?"),
        ({"name": "format", "pattern": "("}, "not a regular expression"),
        ({"name": "format", "style": "boxd"}, "did you mean 'boxed'"),
        ("soft_overlong", "needs the argument 'max_length'"),
    ],
)  # fmt: skip
def test_a_reward_that_cannot_be_made_is_refused_with_the_recipe(folder, monkeypatch, given, words):
    monkeypatch.chdir(folder)
    (folder / "broken.py").write_text("def r(:\n")
    file = recipe(folder, "refused.yaml")
    with pytest.raises(ValueError) as error:
        load_recipe(folder / "refused.yaml", {"rl.reward": given})
    assert words in str(error.value) and "1 error" in str(error.value), file


def test_a_missing_column_is_named_before_a_model_loads(folder, monkeypatch):
    monkeypatch.chdir(folder)
    recipe(folder, "missing.yaml", reward="mine.py:polite", columns=COLUMNS | {"tome": "mood"})
    content = yaml.safe_load((folder / "missing.yaml").read_text())
    del content["rl"]["columns"]["tone"]
    content["model"] = "owner/none"  # would fail, and later
    (folder / "missing.yaml").write_text(yaml.safe_dump(content))
    done = trustclip("run", "missing.yaml", "--allow-code")
    assert done.returncode == 2
    assert "needs a column 'tone'" in done.stderr and "{tone: tome}" in done.stderr
    with pytest.raises(ValueError, match="which `columns` takes as the answer: rename the param"):
        check_columns(read_rewards("mine.py:polite"), ["answer"], "d.csv", {"answer": "tone"})


def test_no_file_is_imported_without_consent(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with consent(), pytest.raises(ValueError, match=r"Python file 'mine.py'.*--allow-code"):
        make_reward(read_rewards("mine.py:polite")[0])
    with consent("mine.py:polite"):
        make_reward(read_rewards("mine.py:polite")[0])
        with pytest.raises(ValueError, match="--allow-code"):
            make_reward(read_rewards("mine.py:Long")[0])


def test_a_file_that_changed_is_kept_beside_the_first(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "mine.py"
    code.write_text(CODE)
    stage = RLStage(dataset="arithmetic", reward="mine.py:polite")
    run = RunDirectory(tmp_path / "run", "rl", stage)
    for text in (CODE, CODE, CODE + "\n# mended\n", CODE + "\n# mended\n"):
        code.write_text(text)
        keep_code(run, ["mine.py:polite"])
    assert sorted(p.name for p in (run.path / "code").iterdir()) == ["mine-2.py", "mine.py"]
