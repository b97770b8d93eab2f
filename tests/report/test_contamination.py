"""What a report says of a run that was trained on test problems."""

import json
from pathlib import Path

from synthetic_runs import Spec, make_run

from trustclip.findings.differences import cautions
from trustclip.findings.groups import group_runs
from trustclip.logs.reader import Run, read_run

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
