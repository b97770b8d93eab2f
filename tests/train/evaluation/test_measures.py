"""Rewards of one's own in an evaluation, in its tables and in the report; equal conditions."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from synthetic_runs import Spec, make_run

from trustclip.findings.conditions import require_equal_problems, unlike
from trustclip.findings.groups import group_runs
from trustclip.logs.answers import score_rows, scores
from trustclip.logs.reader import read_run
from trustclip.report.draw.curves import rewards_figure
from trustclip.train.evaluation.backends.local import Completion
from trustclip.train.evaluation.evaluate import Plan, sample, scores_table
from trustclip.train.evaluation.measures import Measures
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.verify.chosen import RewardError

CODE = """
def even(texts, **_):
    return [float(len(text) % 2 == 0) for text in texts]

def share(texts, tone, **_):
    return [len(text) / 4 if word else None for text, word in zip(texts, tone)]
"""


class Fixed:
    """A backend that says what it is told to."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def generate(self, prompts, n, seed):
        return [[Completion(text, len(text), False) for text in self.texts] for _ in prompts]


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return str(path)


def rows_of(given, problems, *texts):
    measures = Measures(given, "any")
    plan = Plan(len(texts), "plain", 0, 8, measures)
    return [row for batch in sample(Fixed(*texts), {"t": problems}, plan) for row in batch]


TONES = [
    Problem("a", "1+2", "3", columns={"tone": 1}),
    Problem("b", "1+3", "4", columns={"tone": 0}),
]


def test_the_verifier_stays_and_further_rewards_are_means(file):
    rows = rows_of(
        ["correct", f"{file}:even", f"{file}:share"], TONES, "<SOLUTION>3</SOLUTION>", "444"
    )
    assert [row["correct"] for row in rows] == [1, 0, 0, 0]
    assert [row["rewards"]["even"] for row in rows] == [1.0, 0.0, 1.0, 0.0]
    assert [row["rewards"]["share"] for row in rows] == [5.5, 0.75, None, None]
    result = scores(rows)
    assert result["tasks"]["t"]["rewards"]["even"]["value"] == 0.5
    assert result["tasks"]["t"]["rewards"]["share"] == {"value": 3.125, "low": None, "high": None}
    (row,), mean = score_rows(result, 8), result["tasks"]["t"]["mean@2"]
    assert [row[f"mean@2{end}"] for end in ("", "/low", "/high")] == [*mean.values()]
    assert row["rewards/even"] == 0.5
    headers = [column.header for column in scores_table(result).columns]
    assert headers[4:6] == ["even", "share"]


def test_the_first_reward_says_what_is_right_and_needs_no_answer(file):
    problems = [dataclasses.replace(problem, answer="") for problem in TONES]
    rows = rows_of(f"{file}:even", problems, "no", "yes")
    assert [row["correct"] for row in rows] == [1, 0, 1, 0]
    assert {row["judged"] for row in rows} == {"reward"}
    assert scores(rows)["tasks"]["t"]["no_answer"] == 0


def test_a_first_reward_that_is_no_verdict_is_refused(file):
    with pytest.raises(RewardError, match="must return 0 or 1 for every completion"):
        rows_of([f"{file}:share", f"{file}:even"], TONES, "333")


def trained(folder: Path, seed: int = 0, **config) -> Path:
    run = make_run(folder, Spec({"name": "atr", "delta": 0.07}, seed=seed, steps=8))
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text())
    content["command"] = "run"
    content["eval"] = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 32} | config
    path.write_text(yaml.safe_dump(content))
    return run


def test_other_prompts_and_sampling_are_said(tmp_path):
    first, second = trained(tmp_path / "a"), trained(tmp_path / "b", temperature=0.3)
    assert [*unlike([read_run(first), read_run(first)])] == []
    (found,) = unlike([read_run(first), read_run(second)])
    assert "different sampling (temperature 1.0 and 0.3)" in found.sentence
    for run, template in ((first, "{problem}"), (second, "Solve: {problem}")):
        path = run / "summary.json"
        prompt = {"style": "plain", "system": None, "template": template}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prompt": prompt}))
    texts = [one.sentence for one in unlike([read_run(first), read_run(second)])]
    assert len(texts) == 2 and "'Solve: {problem}'" in texts[0]


def test_one_id_with_two_texts_is_refused(tmp_path):
    runs = [trained(tmp_path / "a"), trained(tmp_path / "b")]
    for run, text in zip(runs, ("1+2", "2+2"), strict=True):
        row = {"id": "p", "task": "t", "problem": text, "answer": "4"}
        (run / "problems.jsonl").write_text(json.dumps(row) + "\n")
    require_equal_problems([read_run(runs[0])] * 2)
    with pytest.raises(ValueError, match=r"1 have one id and two texts or answers \(t: p\)"):
        require_equal_problems([read_run(run) for run in runs])


def test_each_of_several_rewards_has_a_chart(tmp_path):
    run = trained(tmp_path / "a")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rewards_figure(group_runs([read_run(run)])) is None
    for number, row in enumerate(row for row in rows if row["stage"] == "rl"):
        row |= {"rewards/correct/mean": number / 10, "rewards/polite/mean": 0.5}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = rewards_figure(group_runs([read_run(run)]))
    assert figure is not None and [panel.title for panel in figure.panels] == ["correct", "polite"]
    assert figure.panels[1].marks[-1].y == [0.5] * len(figure.panels[1].marks[-1].y)


def test_each_completion_is_measured_beside_its_own_prompt(tmp_path):
    class Echo(Fixed):
        def generate(self, prompts, n, seed):
            said = [str(prompt[-1]["content"]) for prompt in prompts]
            return [[Completion(f"{text} {i}", 1, False) for i in range(n)] for text in said]

    file = tmp_path / "asked.py"
    file.write_text(
        "def asked(prompts, texts, **_):\n"
        "    pairs = zip(prompts, texts)\n"
        "    return [float(text.startswith(p[-1]['content'])) for p, text in pairs]\n"
    )
    plan = Plan(3, "plain", 0, 8, Measures(f"{file}:asked", "any"))
    (rows,) = sample(Echo(), {"t": TONES}, plan)
    assert [row["correct"] for row in rows] == [1] * 6
