"""Evaluation: what is recorded, what scores say, and an interrupted run that is continued."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from trustclip.logs.answers import scores
from trustclip.support.jsonl import append_jsonl
from trustclip.train.eval import open_backend, run_evaluation
from trustclip.train.evaluation.backends.local import Completion
from trustclip.train.evaluation.backends.served import Served
from trustclip.train.evaluation.evaluate import Evaluation, Plan, recover, sample
from trustclip.train.files import preset
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.verify.pool import WorkerPool
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import EvalSettings, RecipeEval


def quiet():
    return Console(file=io.StringIO())


def settings(folder, **changes):
    tiny = replace(EvalSettings(**preset("eval", "tiny")), k=3, batch_size=6, limit=6, max_tokens=8)
    return replace(tiny, output_dir=folder, **changes)


class Scripted:
    """Answers by prompt; remembers what it was asked for."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def generate(self, prompts, n, seed):
        contents = [prompt[-1]["content"] for prompt in prompts]
        self.asked.append((contents, seed))
        return [
            [Completion(text, len(text), truncated=False) for text in self.answers[content][:n]]
            for content in contents
        ]


def boxed(*answers):
    return [f"\\boxed{{{answer}}}" for answer in answers]


TASKS = {
    "a": [Problem(id=f"a{i}", problem=f"a{i}", answer="1") for i in range(2)],
    "b": [Problem(id="b0", problem="b0", answer="$\\frac{1}{2}$")],
}
ANSWERS = {
    "a0": boxed(1, 2, 2, 1),
    "a1": ["no idea", *boxed(2, 2), "no idea"],
    "b0": boxed(3, "\\frac{2}{4}", "\\frac{2}{4}", 3),
}
PLAN = Plan(k=4, style="boxed", seed=0, batch_size=8)


def test_rows_and_scores_by_hand():
    backend = Scripted(ANSWERS)
    rows = [row for batch in sample(backend, TASKS, PLAN) for row in batch]
    # A system message comes with the style, the problem is the last message.
    assert [contents for contents, _ in backend.asked] == [["a0", "a1"], ["b0"]]
    assert len({seed for _, seed in backend.asked}) == 2
    assert [row["correct"] for row in rows] == [1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    assert [row["judged"] for row in rows[:8]] == ["direct"] * 4 + [
        "no_answer", "direct", "direct", "no_answer",
    ]  # fmt: skip
    result = scores(rows)
    a, b, average = result["tasks"]["a"], result["tasks"]["b"], result["average"]
    assert a["no_answer"] == 0.25 and b["no_answer"] == 0 and a["timeout"] == 0
    # a0 has 2 of 4 right: Pass@2 = 1 - C(2,2)/C(4,2) = 5/6; a1 has none.
    assert a["curve"]["k"] == [1, 2, 3, 4]
    assert a["curve"]["pass"] == pytest.approx([1 / 4, 5 / 12, 1 / 2, 1 / 2])
    assert a["curve"]["mean"] == pytest.approx([1 / 2, 1 / 4, 1 / 6, 1 / 4])
    assert average["curve"]["pass"] == pytest.approx([3 / 8, 5 / 8, 3 / 4, 3 / 4])
    assert average["curve"]["mean"][-1] == average["mean@4"]["value"] == pytest.approx(3 / 8)
    assert average["curve"]["pass"][-1] == average["pass@4"]["value"]


def test_while_training_each_seed_and_each_update_has_samples_of_its_own(tmp_path, monkeypatch):
    backend, chosen = Scripted(ANSWERS), RecipeEval(tasks="a", k=2, batch_size=8)
    monkeypatch.setattr(Evaluation, "_backend", lambda *_: backend)
    for seed, step in [(0, 8), (0, 4), (1, 8), (0, 8)]:
        run = RunDirectory(tmp_path / str(len(backend.asked)), "eval", chosen)
        trainer: Any = MagicMock(state=SimpleNamespace(global_step=step))
        Evaluation(chosen, seed, {"a": TASKS["a"]}, run, quiet())(trainer)
    seeds = [seed for _, seed in backend.asked]
    assert seeds[0] == seeds[3] and len(set(seeds)) == 3


def test_timeouts_are_told_by_row_and_by_task(monkeypatch):
    def stuck_on_halves(pool, tasks):
        return ["timeout" if "4" in task["answer"] else "wrong" for task in tasks]

    monkeypatch.setattr(WorkerPool, "ask", stuck_on_halves)
    answers = {**ANSWERS, "b0": boxed("x+y", "x^4", "x^4", "x^4")}
    rows = [row for batch in sample(Scripted(answers), TASKS, PLAN) for row in batch]
    assert [row["judged"] for row in rows[8:]] == ["algebra", *["timeout"] * 3]
    result = scores(rows)
    assert result["tasks"]["a"]["timeout"] == 0
    assert result["tasks"]["b"]["timeout"] == 0.75
    assert result["average"]["timeout"] == 0.25


@pytest.mark.parametrize("cut", ["nothing", "mid-line", "mid-batch", "in the first batch"])
def test_a_resumed_run_gives_what_an_uninterrupted_one_gives(tmp_path, cut):
    whole = run_evaluation(settings(tmp_path / "whole"), quiet()).path
    lines = (whole / "samples.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 18  # three batches of two problems, three samples each
    assert len({json.loads(line)["response"] for line in lines}) > 6

    run = tmp_path / "run"
    RunDirectory(run, "eval", settings(run))
    kept = {
        "nothing": lines,
        "mid-line": [*lines[:8], lines[8][:40]],
        "mid-batch": lines[:15],
        "in the first batch": [lines[0][:1]],
    }[cut]
    (run / "samples.jsonl").write_bytes(b"".join(kept))
    console = quiet()
    run_evaluation(settings(run), console)
    assert (run / "samples.jsonl").read_bytes() == b"".join(lines)
    first, again = (json.loads((p / "summary.json").read_text()) for p in (whole, run))
    for summary in (first, again):
        del summary["seconds"], summary["cpu_seconds"], summary["hashes"]
    assert first == again
    assert sum(first["verifier"].values()) == 18
    problems = {"nothing": 6, "mid-line": 2, "mid-batch": 4, "in the first batch": 0}[cut]
    text: Any = console.file
    said = text.getvalue()
    assert (f"continuing: {problems} problems are done" in said) == (problems > 0)
    assert (f"eval {6 - problems}/{6 - problems} " in said) == (problems < 6)


@pytest.mark.slow
def test_only_what_is_missing_is_sampled_again(tmp_path):
    path = tmp_path / "samples.jsonl"
    rows = [row for batch in sample(Scripted(ANSWERS), TASKS, PLAN) for row in batch]
    rows[0]["response"] += "\u2028\x85 line ends of another kind"
    append_jsonl(path, rows[:8])
    with path.open("ab") as file:
        file.write('{"task": "b", "id": "½'.encode()[:-1])
    done = recover(path, TASKS, PLAN)
    assert done == rows[:8]
    assert path.read_bytes().count(b"\n") == 8 and path.read_bytes().endswith(b"}\n")
    backend = Scripted(ANSWERS)
    assert [row["id"] for batch in sample(backend, TASKS, PLAN, done) for row in batch] == [
        "b0"
    ] * 4
    assert not list(tmp_path.glob("*.part"))

    changed = {"a": [replace(TASKS["a"][0], answer="2"), TASKS["a"][1]]}
    assert recover(path, changed, PLAN) == []  # graded against another gold: worth nothing
    append_jsonl(path, rows[:8])
    damaged = path.read_bytes().replace(b'"k": 2', b'"k":\0 2', 1)
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=r":3 is no JSON object; its samples are drawn again"):
        assert recover(path, TASKS, PLAN) == []  # all of one batch
    path.write_text('{"task": ["b"], "id": {}, "gold": "1"}\n')
    assert recover(path, TASKS, PLAN) == []


def test_backends_are_chosen_by_name(tmp_path):
    asked = EvalSettings(model="any name", tasks="arithmetic", output_dir=tmp_path)
    assert asked.backend == "transformers"
    assert isinstance(open_backend(replace(asked, backend="openai")), Served)
    with pytest.raises(ValueError, match="backend"):
        replace(asked, backend="sglang")
    with pytest.raises(ValueError, match="no model"):
        run_evaluation(replace(asked, model="./nowhere"), quiet())
