"""A stopped run continues on the inputs it began with, or on others where somebody says so."""

import json
import shutil

import pytest
from commands import trustclip
from tiny_folder import tiny_folder

from trustclip.support.jsonl import read_jsonl

REWARD = '''
import os
from pathlib import Path

def even(completions, **_):
    """As a job manager stops a run."""
    if Path("stop").exists():
        os.kill(os.getpid(), 15)
    return [float(len(text) % 2) for text in completions]
'''
METHOD = """
from trustclip import Method, Surrogate, TokenBatch, definition, gates

@definition
class Mine(Method):
    bound: float = 0.2

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        inside = batch.log_ratio.abs() <= self.bound
        kept = gates.keeps_gradient(inside, batch.log_ratio, batch.advantages, "outward")
        return gates.hard(batch, kept)
"""
TRAIN = (
    *("rl", "--model", "model", "--dataset", "d.jsonl", "--reward", "rew.py:even"),
    *("--method", "own.py:Mine", "--output-dir", "run", "--max-steps", "4", "--save-steps", "1"),
    *("--per-device-train-batch-size", "4", "--num-generations", "4", "--steps-per-generation"),
    *("2", "--gradient-accumulation-steps", "2", "--num-iterations", "2"),
    *("--max-completion-length", "4"),
)


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def reverse(path):
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


#: What is changed in the working directory, and how the refusal names it.
CHANGES = {
    "rows": (lambda f: edit(f / "d.jsonl", "3+1=", "3+2="), "the rows of `dataset`"),
    "order": (lambda f: reverse(f / "d.jsonl"), "the order of the rows of `dataset`"),
    "reward": (lambda f: edit(f / "rew.py", "% 2", "% 3"), "the code of rew.py:even"),
    "method": (lambda f: edit(f / "own.py", "<= self", "< self"), "the code of own.py:Mine"),
    "template": (
        lambda f: (f / "model" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}"),
        "the chat template",
    ),
    "package": (
        lambda f: edit(f / "run" / "environment.json", '"trl": "', '"trl": "0.1-'),
        "trl (0.1-",
    ),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A working directory with a run that was stopped while it sampled."""
    folder = tmp_path_factory.mktemp("stopped")
    tiny_folder(folder / "model")
    (folder / "rew.py").write_text(REWARD)
    (folder / "own.py").write_text(METHOD)
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "id": f"p{i}"} for i in range(8)]
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "stop").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = trustclip(*TRAIN)
    assert ended.returncode == 0 and "stopped" in ended.stdout, ended.stderr
    (folder / "stop").unlink()
    return folder


@pytest.fixture
def folder(stopped, tmp_path, monkeypatch):
    copy = tmp_path / "work"
    shutil.copytree(stopped, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.parametrize("change", CHANGES)
def test_a_stopped_run_refuses_other_inputs_by_name(folder, change):
    apply, name = CHANGES[change]
    apply(folder)
    before = sorted(path.name for path in (folder / "run").iterdir())
    for command in (TRAIN, ("resume", "run", "--allow-code")):
        refused = trustclip(*command)
        said = " ".join(refused.stderr.split())
        assert refused.returncode == 2 and "loading model" not in said, refused.stdout
        assert f"this has changed: {name}" in said and "--changed-inputs" in said
    assert sorted(path.name for path in (folder / "run").iterdir()) == before


@pytest.mark.slow
def test_a_run_goes_on_with_other_inputs_where_told_and_records_them(folder):
    for apply, _ in CHANGES.values():
        apply(folder)
    done = trustclip(*TRAIN, "--changed-inputs")
    assert done.returncode == 0, done.stderr
    run = folder / "run"
    (sentence,) = json.loads((run / "summary.json").read_text())["changed_inputs"]
    assert all(name in sentence for _, name in CHANGES.values() if "order" not in name)
    noticed = [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "notice"]
    assert sentence in [row["text"] for row in noticed]
    assert "0.1-" not in (run / "environment.json").read_text()
    texts = [row["problem"] for row in read_jsonl(run / "problems.jsonl") if row["id"] == "p3"]
    assert texts == ["3+1=", "3+2="]
    assert sentence in " ".join(trustclip("explain", "run").stdout.split())
    assert trustclip("verify", "run").returncode == 0


def test_unchanged_inputs_continue_without_a_word(folder):
    done = trustclip("resume", "run", "--allow-code")
    assert done.returncode == 0, done.stderr
    assert "changed_inputs" not in json.loads((folder / "run" / "summary.json").read_text())


def test_a_method_that_became_wrong_is_refused_for_its_fault(folder):
    edit(folder / "own.py", "gates.hard(batch, kept)", "Surrogate(batch.advantages * 0, kept)")
    refused = trustclip("resume", "run", "--allow-code", "--changed-inputs")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "'own.py:Mine' is wrong. The objective has no gradient" in refused.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("inputs.json", '{"changes": [5]}'),
        ("inputs.json", '{"inputs": {"the rows of `dataset`": 7}}'),
        ("environment.json", '{"versions": ["trl"]}'),
    ],
)
def test_a_record_of_another_form_is_one_sentence(folder, name, content):
    (folder / "run" / name).write_text(content)
    refused = trustclip("resume", "run", "--allow-code")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert name in refused.stderr


@pytest.mark.slow
def test_an_evaluation_refuses_other_problems(folder):
    command = ("eval", "--model", "model", "--tasks", "d.jsonl", "--k", "2", "--max-tokens", "4")
    command = (*command, "--output-dir", "scores")
    assert trustclip(*command).returncode == 0
    edit(folder / "d.jsonl", "3+1=", "3+2=")
    refused = trustclip(*command)
    assert refused.returncode == 2
    assert "the rows of `tasks` d" in " ".join(refused.stderr.split())
    done = trustclip(*command, "--changed-inputs")
    assert done.returncode == 0, done.stderr
    (sentence,) = json.loads((folder / "scores" / "summary.json").read_text())["changed_inputs"]
    assert "the rows of `tasks` d" in sentence
