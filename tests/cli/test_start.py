"""From nothing to a first recipe, and a look at a model's completions before it is trained."""

import json
import re
import shlex
from pathlib import Path

import fastjsonschema
import pytest
from extensions.schemas import schema

from trustclip.cli.main import main
from trustclip.train.files import load_recipe, load_yaml

ROWS = [{"text": f"What is {n} + {n}?", "label": str(2 * n)} for n in range(40)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    Path("sums.jsonl").write_text(rows)
    return tmp_path


def test_a_trial_shows_prompt_answer_reward_length_and_speed(here, capsys):
    assert main(["try", "tiny", "--dataset", "arithmetic", "--n", "3", "--max-tokens", "6"]) == 0
    out = capsys.readouterr().out
    assert "problem 2 of 2, gold answer" in out and "  | " in out
    assert out.count("\ncompletion ") == 4 and "reward 0, " in out
    assert "4 completions of 2 problems: mean reward 0; " in out
    assert "a second, on cpu in float32, 0.4" in out
    assert "warning: " in out, "an untrained model is nothing to train from"


def test_a_trial_of_own_data_and_rewards(here, capsys):
    Path("mine.py").write_text("def length(texts, label, **_):\n    return [float(label[0])] * 2\n")
    given = "--columns.problem text --columns.answer label --columns.label label"
    given += " --reward mine.py:length"
    command = f"try tiny --dataset sums.jsonl@[4:] --n 2 --max-tokens 3 {given}"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert "What is 4 + 4?" in out and "gold answer 8" in out and "completion 2: reward 8" in out


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("try tiny --dataset sumz.jsonl", "did you mean 'sums.jsonl'"),
        ("try tinny --dataset arithmetic", "Did you mean 'tiny'?"),
        ("try tiny", "`dataset` is missing"),
        ("try --dataset arithmetic", "MODEL|RECIPE is missing"),
        ("try tiny --dataset arithmetic --each 0", "greater than or equal to 1"),
        ("try nothing.yaml", "no file 'nothing.yaml'"),
        ("init --model tinny --dataset arithmetic", "Did you mean 'tiny'?"),
        ("init --model tiny --dataset sums.jsonl", "the row has text, label"),
        ("init --model tiny --dataset arithmetic --method clipp", "did you mean 'clip'?"),
        ("init sums.jsonl --model tiny --dataset arithmetic", "sums.jsonl exists"),
        ("init mine.txt --model tiny", "ends with .yaml or .yml, got mine.txt"),
    ],
)
def test_bad_input_is_one_message_before_a_model_loads(here, capsys, monkeypatch, command, told):
    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("trustclip.train.trial.load_model", load)
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not Path("recipe.yaml").exists()


def checked(file):
    """The recipe in a file, which the schema takes, too."""
    fastjsonschema.validate(schema("recipe"), load_yaml(file)[0], use_default=False)
    recipe = load_recipe(file)
    assert not recipe.rl.schedule.inert
    return recipe


def test_a_first_recipe_of_own_data(here, capsys):
    given = "--columns.problem text --columns.answer label --prompt-style boxed --max-bad-rows 7"
    assert main(f"init mine.yaml --model tiny --dataset sums.jsonl {given}".split()) == 0
    out = capsys.readouterr().out
    assert re.search("fine-tuning +on arithmetic: this model", out), "a built-in model is primed"
    assert "put your final answer within \\boxed{}" in out, "the dry run shows the style's prompt"
    assert "\n  trustclip try mine.yaml\n" in out and "\n  trustclip run mine.yaml\n" in out
    recipe = checked(Path("mine.yaml"))
    assert recipe.eval is not None and recipe.sft is None, "the data have no solutions"
    assert (recipe.rl.dataset, recipe.eval.tasks) == ("sums.jsonl@[:90%]", "sums.jsonl@[90%:]")
    assert recipe.rl.columns == {"problem": "text", "answer": "label"} == recipe.eval.columns
    assert recipe.rl.style.asked == recipe.eval.style.asked
    assert recipe.rl.max_bad_rows == recipe.eval.max_bad_rows == 7


def test_a_first_recipe_of_solved_problems_tunes_on_them_and_can_be_tried(here, capsys):
    assert main(["init", "--model", "tiny", "--seed", "3", "--limit", "32"]) == 0
    recipe = checked(Path("recipe.yaml"))
    assert recipe.sft and recipe.eval and recipe.seed == 3
    assert recipe.sft.limit == recipe.rl.limit == recipe.eval.limit == 32
    assert recipe.rl.max_completion_length % 8 == 0 and recipe.rl.max_completion_length < 256
    capsys.readouterr()
    assert main(["try", "recipe.yaml", "--n", "2", "--rl.max-completion-length", "4"]) == 0
    out = capsys.readouterr().out
    assert "cut off at 4 tokens" in out and "Solve the problem in short steps" in out


def test_a_recipe_with_a_reward_of_ones_own_scores_by_it_and_its_commands_run(here, capsys):
    Path("sums.csv").write_text(
        "text,label\n" + "".join(f"{n} + {n}?,{2 * n}\n" for n in range(60))
    )
    Path("rewards.py").write_text(
        "def right(completions, answer, **_):\n"
        "    return [float(a in c[-1]['content']) for c, a in zip(completions, answer)]\n"
        "def short(completions, **_):\n"
        "    return [0.5 / (1 + len(c[-1]['content'])) for c in completions]\n"
    )
    columns = ["--columns.problem", "text", "--columns.answer", "label"]
    init = ["init", "mine.yaml", "--model", "tiny", "--dataset", "sums.csv", *columns]
    assert main([*init, "--reward", "rewards.py:right"]) == 0
    out = capsys.readouterr()
    few = "there are only 6 test problems: a score of 50 % is uncertain by up to 40 points"
    assert few in out.out + out.err
    text = Path("mine.yaml").read_text()
    assert str(here) not in text and "/recipes/schema" not in text
    recipe = load_recipe(Path("mine.yaml"), allow_code=True)
    assert recipe.eval is not None and recipe.eval.reward == recipe.rl.reward == "rewards.py:right"
    named = re.findall(r"^  trustclip (.*)$", out.out, re.MULTILINE)
    tried, planned, ran = map(shlex.split, named)
    assert main([*tried, "--n", "2", "--rl.max-completion-length", "4"]) == 0
    out = capsys.readouterr().out
    assert "cut off at 4 tokens" in out and "no answer found" not in out, "her reward decides"
    assert main([*planned, "--rl.max-completion-length", "4"]) == 0
    assert ran == [part for part in planned if part != "--dry-run"]
    capsys.readouterr()
    assert main([*planned, "--rl.max-completion-length", "100000000"]) == 2
    assert "100,000,000, but the model 'tiny' reads at most 4,096 tokens" in capsys.readouterr().err
    graded = ["--reward", "rewards.py:short"]
    assert main(["init", "graded.yaml", *init[2:], *graded]) == 0
    recipe = load_recipe(Path("graded.yaml"), allow_code=True)
    assert recipe.eval is not None and recipe.eval.rewards[0].name == "correct"
    capsys.readouterr()
    wrong = ["--eval.reward", "rewards.py:short"]
    assert main(["run", "graded.yaml", "--dry-run", "--allow-code", *wrong]) == 2
    assert "it must return 0 or 1 for every completion" in capsys.readouterr().err


def test_a_dry_run_of_rl_says_what_it_would_do_and_writes_nothing(here, capsys):
    assert main(["rl", "--preset", "tiny", "--dry-run", "--max-steps", "8"]) == 0
    out = capsys.readouterr().out
    assert "updates       8, 4 per generation" in out and "a prompt, style plain:" in out
    assert not Path("runs").exists()
