"""Scores beside those of the clean test problems, in the summary of a run and in reports."""

import json
from pathlib import Path

import pytest
from synthetic_runs import Spec, final_of, make_run

from trustclip import stats
from trustclip.findings.differences import cautions
from trustclip.findings.groups import group_runs
from trustclip.logs.reader import Run, read_run
from trustclip.logs.samples import shards
from trustclip.report.contamination import clean_table
from trustclip.report.tables import Table, markdown
from trustclip.train.evaluation.evaluate import clean_scores

ATR = Spec({"name": "atr", "delta": 0.07}, gain=3.0)


def overlapping_run(path: Path, ids: list[str], *, excluded: bool = True) -> Run:
    summary = json.loads((make_run(path, ATR) / "summary.json").read_text())
    found = {"excluded": excluded, "problems": len(ids), "tests": {"amc23": ids}}
    (path / "summary.json").write_text(json.dumps({**summary, "overlap": {"rl": found}}))
    return read_run(path)


def table_of(run: Run) -> Table:
    table = clean_table(group_runs([run]))
    assert table is not None
    return table


def test_the_report_has_the_clean_part_beside_the_whole_task(tmp_path):
    answers = final_of(read_run(make_run(tmp_path / "plain", ATR))).answers["amc23"]
    held = list(answers)[::3]
    table = table_of(overlapping_run(tmp_path / "a", held))
    before, row, gained = table.rows
    (head,) = table.head
    assert head[0] == "amc23" and len(head[1]) == len(row.cells) == 4
    clean = stats.mean_interval([[value for key, value in answers.items() if key not in held]])
    assert [cell.text for cell in row.cells] == [
        "20", f"{100 * stats.mean_interval([*answers.values()]).value:.1f}",
        "13", f"{100 * clean.value:.1f}",
    ]  # fmt: skip
    assert row.cells[3].note == f"[{100 * clean.low:.1f}, {100 * clean.high:.1f}]"
    assert "left out of training" in table.notes[0] and table.title in markdown(table)
    # A part may be harder than the whole before training already: the gains compare.
    assert before.label.endswith("before training") and before.cells[0].text == "20"
    first, last, gain = (float(r.cells[3].text.strip("+")) for r in (before, row, gained))
    assert gain == pytest.approx(last - first, abs=0.11) and gained.cells[3].text[0] == "+"
    assert gained.label == "atr δ=0.07, gain in points" and gained.cells[1].note
    everything = table_of(overlapping_run(tmp_path / "b", list(answers)))
    assert [cell.text for cell in everything.rows[1].cells[2:]] == ["0", "-"]
    one = table_of(overlapping_run(tmp_path / "c", list(answers)[1:]))
    assert [r.cells[2].text for r in one.rows] == ["1"] * 3
    trained = table_of(overlapping_run(tmp_path / "d", held, excluded=False))
    assert "exclude: none" in " ".join(trained.notes)


def test_without_an_overlap_there_is_no_such_table(tmp_path):
    assert clean_table(group_runs([read_run(make_run(tmp_path / "a", ATR))])) is None


def test_training_on_test_problems_is_a_fault_of_the_report(tmp_path):
    for excluded in (True, False):
        run = overlapping_run(tmp_path / str(excluded), ["amc23-0", "amc23-1"], excluded=excluded)
        texts = [finding.text for finding in cautions(group_runs([run]), [])]
        assert any("own test sets: atr δ=0.07 (2 " in text for text in texts) != excluded


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
