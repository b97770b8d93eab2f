"""The experiments of the arena in TRL: from the folders of their suites to conclusions."""

import sys

import numpy as np
import pytest
import yaml
from synthetic_runs import Spec, final_of, make_run

pytest.importorskip("pyarrow")

from arena_trl import AT_RATE, NARROW, NONE, Experiment, collect, main

from trustclip.logs.reader import read_run
from trustclip.support.jsonl import append_jsonl

METHODS = {
    "atr": {"name": "atr", "delta": 0.07},
    "clip": {"name": "clip", "epsilon": 0.2},
    "none": {"name": "importance_sampling"},
    f"none{AT_RATE}": {"name": "importance_sampling"},
}
SEEDS = [200, 201, 202, 203]


def suite(folder, left_out):
    """Runs of every method and seed; those left out were killed."""
    entries = {}
    for seed in SEEDS:
        for label, method in METHODS.items():
            spec = Spec(method, seed, steps=4, every=4, tasks={"arithmetic": 20})
            name = f"{label}-seed{seed}"
            killed = 2 if (label, seed) in left_out else None
            run = make_run(folder / name, spec, until=killed)
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["rl"] |= {"method": method, "steps_per_generation": 2}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
            shares = [{"stage": "rl", "step": s, "rewards/correct/mean": 0.3} for s in (1, 3)]
            entropy = [{"stage": "rl", "step": 1, "trustclip/entropy": 0.5}]
            append_jsonl(run / "metrics.jsonl", shares + entropy)
            entries[name] = {"label": label, "model": "small", "seed": seed, "method": method}
    (folder / "suite.yaml").write_text(yaml.safe_dump({"reference": "atr", "runs": entries}))
    return folder


def right_of(folder, label, seed):
    """How many samples of each problem are right after training."""
    problems = final_of(read_run(folder / f"{label}-seed{seed}")).answers["arithmetic"]
    return [sum(right) for right in problems.values()]


def test_folders_of_a_suite_become_a_table_that_answers_its_questions(tmp_path):
    runs = suite(tmp_path / "arena-trl-other", {("clip", 203), (f"none{AT_RATE}", 201)})
    one = Experiment(tmp_path / "tables" / "arena-trl-other", (NONE, NARROW))
    one.folder.parent.mkdir()
    one.write(collect(runs, "test"))
    assert one.descriptions() == {
        "trl-other-settings": "9 runs: 3 constraints on the 3 seeds 200 to 202.",
    }
    table, solved = one.read()
    whole = {name: [right_of(runs, name, s) for s in SEEDS[:3]] for name in ("atr", "clip", "none")}
    assert {name: (4 * share).tolist() for name, share in solved.items()} == whole
    for found, theirs in zip(one.contrasts(), ("none", "clip"), strict=True):
        gaps = np.mean(np.array(whole["atr"]) - np.array(whole[theirs]), axis=1) / 4
        assert found.contrast.difference.value == pytest.approx(gaps.mean(), abs=1e-6)
    assert table.constraints.keys() == whole.keys()
    contrasts, scores = one.tables().values()
    assert [row.note for row in contrasts.rows] == ["atr − none", "atr − clip"]
    assert [row.label for row in scores.rows] == ["atr", "clip", "none"]


def test_a_suite_that_is_no_experiment_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["arena_trl.py", "runs/tuning", "runs/other"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "runs/other is not named arena-trl or arena-trl-small" in told
