"""A recipe from its file to its scores; interrupted anywhere, it ends as if it had not been."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from commands import trustclip
from safetensors.torch import load_file
from test_recipe_files import GOOD

from trustclip.cli.main import main
from trustclip.logs.samples import sample_rows
from trustclip.support.jsonl import read_jsonl
from trustclip.support.lock import only_process
from trustclip.train.durable.ranks import Interrupted
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import DemoSettings

SMALL = {
    "sft": {"dataset": "arithmetic-primer", "prompt_style": "plain", "max_steps": 6, "limit": 64},
    "rl": {"max_steps": 8, "save_steps": 2, "learning_rate": 1e-3, "max_completion_length": 16},
    "eval": {"limit": 8, "max_tokens": 16, "temperature": 1.0},
}
NODE = os.uname().nodename
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
    scores = {key: summary[key] for key in ("initial", "final", "training")}
    weights = {
        key: value.tolist() for key, value in load_file(run / "final/model.safetensors").items()
    }
    return rows, [*sample_rows(run)], read_jsonl(run / "gates.jsonl"), scores, weights


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
    done = [*sample_rows(run)]
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
    assert config["command"] == "run" and config["rl"]["method"]["delta"] == 0.05
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] and summary["method"]["delta"] == 0.05
    assert summary["skipped_steps"] == 0 and summary["cpu_seconds"] > 0
    environment = json.loads((run / "environment.json").read_text())
    assert set(environment) == {"versions", "platform", "processor", "processors", "git"}
    assert "atr" in (run / "final/README.md").read_text()


def test_a_finished_run_stays_and_other_settings_are_refused(whole):
    run, _ = whole
    before = (run / "metrics.jsonl").read_bytes()
    again = trustclip("run", str(run.parent / "recipe.yaml"))
    assert again.returncode == 0 and "is finished" in again.stdout
    assert (run / "metrics.jsonl").read_bytes() == before
    other = trustclip("run", str(run.parent / "recipe.yaml"), "--rl.learning-rate", "1e-9")
    assert other.returncode == 2 and "not 1e-09" in other.stderr


def until(path, text, process):
    """Wait for ``text`` in a file that ``process`` writes while it lives."""
    while True:
        over = process.poll() is not None
        if path.exists() and text in path.read_text():
            return
        assert not over, f"it ended before {text!r} stood in {path}"
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_and_terminated_anywhere_it_ends_the_same(whole, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "trustclip", "run", str(recipe_file(tmp_path))]
    metrics = run / "metrics.jsonl"
    cuts = [
        (run / "sft/metrics.jsonl", '"step": 2', signal.SIGKILL),
        (run / "samples.jsonl", '"step": 0', signal.SIGKILL),
        (metrics, '"rl", "step": 3', signal.SIGTERM),
        (metrics, '"eval", "step": 4', signal.SIGKILL),
        (metrics, '"rl", "step": 6', signal.SIGINT),
    ]
    for path, text, how in cuts:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(path, text, process)
        os.kill(process.pid, how)
        assert process.wait() == (-how if how == signal.SIGKILL else 0)
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert outcome(run) == outcome(whole[0])


def test_rows_without_a_checkpoint_are_set_aside_when_training_starts_over(tmp_path):
    run = RunDirectory(tmp_path / "run", "demo", DemoSettings())
    for number in (1, 2):
        run.start_over()  # nothing is there yet
        run.log({"attempt": number})
        run.sample([{"attempt": number}])
        run.checkpoints.mkdir(exist_ok=True)
        (run.checkpoints / "start.json").write_text("{}")
        run.start_over()  # killed before the first checkpoint: that start is continued
        assert read_jsonl(run.path / "metrics.jsonl") == [{"attempt": number}]
        run.checkpoints.rename(tmp_path / f"moved-{number}")
        with pytest.warns(UserWarning, match=f"from the beginning.*attempt-{number}"):
            run.start_over()
        aside = run.path / f"attempt-{number}"
        assert read_jsonl(aside / "metrics.jsonl") == [{"attempt": number}]
        assert sorted(p.name for p in aside.iterdir()) == ["metrics.jsonl", "samples.jsonl"]
        assert [*sample_rows(run.path)] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [("summary.json", "{"), ("summary.json", "[1]"), ("config.yaml", "a: [1"), ("config.yaml", "")],
)
def test_a_damaged_file_of_the_run_is_named(tmp_path, name, content):
    run = RunDirectory(tmp_path / "run", "demo", DemoSettings())
    run.summarize({})
    (run.path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged: .*choose another --output-dir"):
        _ = RunDirectory.resumed(run.path, "demo", DemoSettings()).summary


# One process per run directory


@pytest.fixture
def here():
    """The command line in this process, which gets its handler of SIGTERM back."""
    before = signal.getsignal(signal.SIGTERM)
    yield main
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["rl", "sft", "eval", "run"])
def test_a_second_process_in_a_run_directory_is_refused(tmp_path, here, capsys, command):
    given = [str(recipe_file(tmp_path))]
    if command != "run":
        given = ["--preset", "tiny", "--output-dir", str(tmp_path / "run")]
    with only_process(tmp_path / "run"):
        assert here([command, *given]) == 2
        assert [p.name for p in (tmp_path / "run").iterdir()] == ["lock"]
    said = capsys.readouterr().err
    assert f"{tmp_path / 'run'} is in use by another process (pid {os.getpid()} on {NODE})" in said


def test_ranks_of_one_job_are_one_process(tmp_path, monkeypatch):
    with only_process(tmp_path):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with only_process(tmp_path):
            pass


HOLDER = """
import os, sys, time
from pathlib import Path
from trustclip.support.lock import only_process
with only_process(Path(sys.argv[1])):
    if not os.fork():
        print(os.getpid(), flush=True)  # it has let go of the lock by now
    time.sleep(600)
"""


def test_a_killed_process_holds_nothing_even_if_its_children_live_on(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(ValueError, match=f"pid {holder.pid} on"), only_process(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with only_process(tmp_path):
            assert (tmp_path / "lock").read_text().startswith(f"pid {os.getpid()} on")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with (
        pytest.warns(UserWarning, match="cannot be locked .*make sure that no other process"),
        only_process(tmp_path),
    ):
        pass


def test_a_signal_while_priming_ends_rl_with_a_sentence(tmp_path, here, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise Interrupted

    monkeypatch.setattr("trustclip.train.sft.prime", interrupted)
    monkeypatch.setenv("COLUMNS", "500")
    run = tmp_path / "run"
    assert here(["rl", "--preset", "tiny", "--output-dir", str(run)]) == 0
    assert capsys.readouterr().out.endswith(f"stopped; the same command continues {run}.\n")
    assert not json.loads((run / "summary.json").read_text())["finished"]
