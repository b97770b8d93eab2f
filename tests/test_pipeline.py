"""A recipe from its file to its scores; interrupted anywhere, it ends as if it had not been."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from safetensors.torch import load_file
from test_cli import trustclip
from test_recipe_files import GOOD

from trustclip.recipes.records import RunDirectory, read_jsonl, samples
from trustclip.recipes.settings import DemoSettings

SMALL = {
    "sft": {"dataset": "arithmetic-primer", "prompt_style": "plain", "max_steps": 6, "limit": 64},
    "rl": {"max_steps": 8, "save_steps": 2, "learning_rate": 1e-3, "max_completion_length": 16},
    "eval": {"limit": 8, "max_tokens": 16, "temperature": 1.0},
}
#: Columns that say how long something took.
CLOCK = {"step_time"}


def recipe_file(folder, **changes):
    content = yaml.safe_load(GOOD) | {"output_dir": str(folder / "run")} | changes
    for section, values in SMALL.items():
        content[section] = content[section] | values
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def outcome(run):
    """Everything that must not depend on interruptions."""
    rows = [
        {key: value for key, value in row.items() if key not in CLOCK}
        for row in read_jsonl(run / "metrics.jsonl")
    ]
    summary = json.loads((run / "summary.json").read_text())
    scores = {key: summary[key] for key in ("initial", "final", "best", "training")}
    weights = {
        key: value.tolist() for key, value in load_file(run / "final/model.safetensors").items()
    }
    return rows, [*samples(run)], read_jsonl(run / "gates.jsonl"), scores, weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = trustclip("run", str(recipe_file(folder)))
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_a_run_records_everything(whole):
    run, said = whole
    assert "gain, paired by problem" in said and "model in" in said
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == "eval"] == [0, 4, 8]
    assert [row["step"] for row in rows if row["stage"] == "rl"] == [*range(1, 9)]
    done = [*samples(run)]
    assert sum(row["stage"] == "rl" for row in done) == 2 * 64
    assert sum(row["stage"] == "eval" for row in done) == 3 * 8 * 2
    drawn = {(row["step"], row["index"]) for row in done if row["stage"] == "rl"}
    assert drawn == {(step, index) for step in (0, 4) for index in range(64)}
    gates = read_jsonl(run / "gates.jsonl")
    assert [row["step"] for row in gates] == [*range(1, 9)]
    trained = [pair for row in gates for pair in zip(row["generated"], row["index"], strict=True)]
    assert sorted(trained) == sorted(drawn)  # every completion, in one update each
    problems = {(row["task"], row["id"]) for row in read_jsonl(run / "problems.jsonl")}
    assert {(None, row["id"]) for row in done if row["stage"] == "rl"} <= problems
    assert {("arithmetic", row["id"]) for row in done if row["stage"] == "eval"} <= problems
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["command"] == "run" and config["rl"]["method_args"] == {"delta": 0.05}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] and summary["method"]["delta"] == 0.05
    assert summary["skipped_steps"] == 0 and summary["cpu_seconds"] > 0
    assert set(summary["best"]) == {"step", "average"}
    environment = json.loads((run / "environment.json").read_text())
    assert set(environment) == {"versions", "platform", "processors", "argv", "git"}
    assert "atr" in (run / "final/README.md").read_text()


def test_a_finished_run_stays_and_other_settings_are_refused(whole):
    run, _ = whole
    before = (run / "metrics.jsonl").read_bytes()
    again = trustclip("run", str(run.parent / "recipe.yaml"))
    assert again.returncode == 0 and "is finished" in again.stdout
    assert (run / "metrics.jsonl").read_bytes() == before
    other = trustclip("run", str(run.parent / "recipe.yaml"), "--method.delta", "0.2")
    assert other.returncode == 2 and "rl.method_args.delta=0.05, not 0.2" in other.stderr


def until(path, text, process, seconds=120):
    """Wait for ``text`` in a file that ``process`` writes."""
    for _ in range(seconds * 20):
        if path.exists() and text in path.read_text():
            return
        assert process.poll() is None, "it ended before"
        time.sleep(0.05)
    raise AssertionError(f"{text!r} never stood in {path}")


@pytest.mark.slow
def test_killed_and_terminated_anywhere_it_ends_the_same(whole, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "trustclip.cli", "run", str(recipe_file(tmp_path))]
    metrics = run / "metrics.jsonl"
    cuts = [
        (run / "sft/metrics.jsonl", '"step": 2', signal.SIGKILL),
        (run / "samples.jsonl", '"step": 0', signal.SIGKILL),
        (metrics, '"rl", "step": 3', signal.SIGTERM),
        (metrics, '"eval", "step": 4', signal.SIGKILL),
        (metrics, '"rl", "step": 6', signal.SIGKILL),
    ]
    for path, text, how in cuts:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(path, text, process)
        os.kill(process.pid, how)
        assert process.wait(60) == (0 if how == signal.SIGTERM else -how)
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert outcome(run) == outcome(whole[0])


def test_records_that_grow_are_cut_back(tmp_path):
    run = RunDirectory(tmp_path / "run", "demo", DemoSettings())
    run.log({"step": 1})
    run.sample([{"step": 1}])
    cursor = run.cursor()
    run.log({"step": 2})
    run.gates({"step": 2})
    with (run.path / "samples.jsonl").open("a") as file:
        file.write('{"step": 2, "torn')
    run.rewind(cursor)
    assert run.cursor() == cursor
    assert not (run.path / "gates.jsonl").exists()
    assert read_jsonl(run.path / "samples.jsonl") == [{"step": 1}]
    os.truncate(run.path / "metrics.jsonl", 3)
    with pytest.raises(ValueError, match="has lost lines"):
        run.rewind(cursor)


def test_samples_go_on_in_another_shard(tmp_path, monkeypatch):
    monkeypatch.setattr("trustclip.recipes.records.SHARD_BYTES", 100)
    run = RunDirectory(tmp_path / "run", "demo", DemoSettings())
    for number in range(30):
        run.sample([{"number": number}])
    names = sorted(path.name for path in run.path.glob("samples*"))
    assert names[0] == "samples-00001.jsonl" and "samples.jsonl" in names and len(names) > 3
    assert [row["number"] for row in samples(run.path)] == [*range(30)]
