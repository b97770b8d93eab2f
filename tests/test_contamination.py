"""Scores beside those of the clean test problems, in the summary of a run and in reports."""

import json
from pathlib import Path

from synthetic_runs import Spec, final_of, make_run

from trustclip import stats
from trustclip.recipes.pipeline import clean_scores
from trustclip.report.contamination import clean_table
from trustclip.report.groups import group_runs
from trustclip.report.tables import Table, markdown
from trustclip.report.verdict import cautions
from trustclip.runs.reader import Run, read_run
from trustclip.runs.samples import shards

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
    ((row,), (head,)) = table.rows, table.head
    assert head[0] == "amc23" and len(head[1]) == len(row.cells) == 5
    clean = stats.mean_interval([[value for key, value in answers.items() if key not in held]])
    assert [cell.text for cell in row.cells] == [
        "20", f"{100 * stats.mean_at_k([*answers.values()]):.1f}",
        "13", f"{100 * clean.value:.1f}", row.cells[4].text,
    ]  # fmt: skip
    assert row.cells[3].note == f"[{100 * clean.low:.1f}, {100 * clean.high:.1f}]"
    assert "Scores on clean problems" in markdown(table)
    everything = table_of(overlapping_run(tmp_path / "b", list(answers)))
    assert [cell.text for cell in everything.rows[0].cells[2:]] == ["0", "-", "-"]


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
    assert list(clean) == ["initial_clean", "final_clean"]
    parts = clean["final_clean"]["tasks"]
    assert {task: part["problems"] for task, part in parts.items()} == {"amc23": 1, "aime24": 10}
    assert clean_scores({}, found) == {}
