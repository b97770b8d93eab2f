"""Scores of the clean test problems in the summary of a run, and what a report says of others."""

import json
from pathlib import Path

import pytest
from synthetic_runs import Spec, make_run

from trustclip.findings.differences import cautions
from trustclip.findings.groups import group_runs
from trustclip.logs.reader import Run, read_run
from trustclip.logs.samples import shards
from trustclip.train.evaluation.evaluate import clean_scores

ATR = Spec({"name": "atr", "delta": 0.07}, gain=3.0)


def overlapping_run(path: Path, ids: list[str], *, excluded: bool = True) -> Run:
    summary = json.loads((make_run(path, ATR) / "summary.json").read_text())
    found = {"excluded": excluded, "problems": len(ids), "tests": {"amc23": ids}}
    (path / "summary.json").write_text(json.dumps({**summary, "overlap": {"rl": found}}))
    return read_run(path)


def test_training_on_test_problems_is_a_fault_of_the_report(tmp_path):
    for excluded in (True, False):
        run = overlapping_run(tmp_path / str(excluded), ["amc23-0", "amc23-1"], excluded=excluded)
        texts = [finding.text for finding in cautions(group_runs([run]), [])]
        assert any("in the training data: atr δ=0.07 (2 " in text for text in texts) != excluded


def test_the_summary_scores_the_clean_problems_before_and_after(tmp_path):
    run = read_run(make_run(tmp_path / "a", ATR))
    rows = [json.loads(line) for shard in shards(run.path) for line in shard.open()]
    rows = [row for row in rows if row["stage"] == "eval"]
    found = {step: [row for row in rows if row["step"] == step] for step in (0, 60)}
    held = {row["id"] for row in found[0] if row["task"] == "amc23"}
    held.remove(min(held))
    overlap = {"rl": {"excluded": True, "problems": 9, "tests": {"amc23": sorted(held)}}}
    clean = clean_scores(overlap, found)
    assert list(clean) == ["initial_clean", "final_clean", "difference_clean"]
    first, last = (
        next(v["value"] for k, v in clean[f"{name}_clean"]["average"].items() if "mean@" in k)
        for name in ("initial", "final")
    )
    assert clean["difference_clean"]["value"] == pytest.approx(last - first)
    parts = clean["final_clean"]["tasks"]
    assert {task: part["problems"] for task, part in parts.items()} == {"amc23": 1, "aime24": 10}
    assert clean_scores({}, found) == {}
