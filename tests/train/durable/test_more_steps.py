"""More updates for a run that has begun: exact where they can be, and told where not."""

import json
import shutil

import pytest
import yaml
from commands import trustclip
from safetensors.torch import load_file
from test_own_rewards import folder  # noqa: F401  (a fixture)
from test_own_rewards import recipe as written

from trustclip.logs.writing.extension import extension
from trustclip.support.jsonl import read_jsonl

CLOCK = {"step_time"}
CONSTANT = {"lr_scheduler_type": "constant", "warmup_steps": 0, "learning_rate": 1e-3}


def outcome(run):
    """Weights and rows, without what only says how long something took."""
    logged = read_jsonl(run / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in logged]
    return load_file(run / "final/model.safetensors"), rows, read_jsonl(run / "samples.jsonl")


def with_evaluation(file, path):
    content = yaml.safe_load(path.read_text())
    content["eval"] = {"tasks": "arithmetic", "prompt_style": "plain", "k": 1, "limit": 2,
                       "max_tokens": 4}  # fmt: skip
    content["rl"] |= {"dataset": "arithmetic", "columns": {}, "limit": 32}
    path.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_been_longer(folder):  # noqa: F811
    rl = CONSTANT | {"max_steps": 3, "save_steps": 3}
    short = with_evaluation(written(folder, "short.yaml", **rl), folder / "short.yaml")
    whole = with_evaluation(written(folder, "whole.yaml", **rl), folder / "whole.yaml")
    assert trustclip("run", short).returncode == 0
    assert trustclip("run", whole, "--max-steps", "6").returncode == 0
    first = load_file(folder / "short/final/model.safetensors")
    done = trustclip("resume", str(folder / "short"), "--max-steps", "6")
    assert done.returncode == 0, done.stderr
    assert "6 updates in place of 3: the schedule is constant" in done.stdout
    weights, rows, samples = outcome(folder / "short")
    expected, expected_rows, expected_samples = outcome(folder / "whole")
    assert all((weights[name] == expected[name]).all() for name in expected)
    assert rows == expected_rows and samples == expected_samples
    assert any((weights[name] != first[name]).any() for name in first)
    summary = json.loads((folder / "short/summary.json").read_text())
    assert summary["finished"] and summary["extensions"][0]["now"] == 6
    assert yaml.safe_load((folder / "short/config.yaml").read_text())["rl"]["max_steps"] == 6
    again = trustclip("resume", str(folder / "short"))
    assert again.returncode == 0 and "nothing to do" in again.stdout
    fewer = trustclip("resume", str(folder / "short"), "--max-steps", "4")
    assert fewer.returncode == 2 and "may get more updates, not fewer (6 so far)" in fewer.stderr
    other = trustclip("resume", str(folder / "short"), "--rl.learning-rate", "1e-4")
    assert other.returncode == 2 and "rl.learning_rate=0.001, not 0.0001" in other.stderr
    assert "you may change rl.max_steps upwards, and changed_inputs, name" in other.stderr


def test_another_schedule_goes_on_and_says_what_differs(folder, monkeypatch):  # noqa: F811
    monkeypatch.chdir(folder)
    args = ("rl", "--model", "model", "--dataset", "arithmetic", "--limit", "16", "--save-steps",
            "2", "--max-completion-length", "4", "--num-generations", "4", "--lora-r", "0",
            "--gradient-accumulation-steps", "1", "--prompt-style", "plain", "--learning-rate",
            "1e-3", "--warmup-steps", "0")  # fmt: skip
    assert trustclip(*args, "--max-steps", "2", "--output-dir", "linear").returncode == 0
    shutil.copytree("linear", "unsaved")
    shutil.rmtree("unsaved/checkpoints")
    done = trustclip(*args, "--max-steps", "4", "--output-dir", "linear")
    assert done.returncode == 0, done.stderr
    assert "follows the linear schedule of 4 updates from here on" in done.stdout
    rates = [row["learning_rate"] for row in read_jsonl(folder / "linear" / "metrics.jsonl")]
    # Two updates of a schedule of two, then what is left of a schedule of four.
    assert rates == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4])
    refused = trustclip("resume", "unsaved", "--max-steps", "4")
    assert refused.returncode == 2
    assert "kept no checkpoint to go on from" in refused.stderr
    assert "--model unsaved/final" in refused.stderr


@pytest.mark.parametrize(
    ("schedule", "warmup", "exact"),
    [("constant", 0.1, True), ("constant_with_warmup", 5, True),
     ("constant_with_warmup", 0.1, False), ("linear", 0, False), ("cosine", 5, False)],
)  # fmt: skip
def test_what_is_exact(schedule, warmup, exact):
    settings = {"rl.max_steps": 2, "rl.lr_scheduler_type": schedule, "rl.warmup_steps": warmup}
    found = extension("rl.max_steps", settings, settings | {"rl.max_steps": 3})
    assert found is not None and found.exact is exact
    assert extension("rl.max_steps", settings, settings | {"rl.max_steps": 1}) is None
    assert extension("", settings, settings | {"rl.max_steps": 3}) is None


def test_a_folder_that_is_no_run(tmp_path):
    done = trustclip("resume", str(tmp_path))
    assert done.returncode == 2 and "is not a run directory" in done.stderr
    assert trustclip("resume", "--help").returncode == 0
    assert trustclip("resume").returncode == 2
