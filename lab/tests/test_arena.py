"""The arena: equal budgets, exact continuation, a twin that is one, and inputs that are refused."""

from pathlib import Path

import pytest
import yaml
from rich.console import Console

from trustclip.cli.main import main
from trustclip_lab.arena import plan, run
from trustclip_lab.arena.run import (
    best_trials,
    complete_rows,
    load,
    run_arena,
)
from trustclip_lab.arena.table import COLUMNS, read_runs, write_runs

TINY = {
    "lab": {"generations": 3, "sft_steps": 30, "eval_prompts": 16, "prompts": 4, "width": 8,
            "pass_k": 2, "distances": False, "eval_samples": 2},
    "tasks": {"many": {"reaches": 0.02}, "teacher": {"reaches": 0.05, "changes": {"prompts": 8}}},
    "depths": {8: {"passes": 2}},
    "learning_rates": [0.03, 0.1],
    "tuning": {"first": 100, "count": 2},
    "test": {"first": 0, "count": 2},
    "constraints": {"none": {"name": "importance_sampling"},
                    "atr": {"name": "atr", "delta": [0.001, 0.07]},
                    "twin": {"bounds_of": "atr"}},
    "axes": {"noise": {"task": "teacher", "depth": 8, "changes": {"noise": 0.2}}},
    "contrasts": {"one against none": ["atr", "none"]},
    "controls": {"the twin": ["atr", "twin"]},
}  # fmt: skip

QUIET = Console(quiet=True)

#: All columns but the one that no two runs share.
SAME = [name for name in COLUMNS if name != "seconds"]


def _file(folder: Path, **changes) -> Path:
    file = folder / "arena.yaml"
    content = {**TINY, "output_dir": str(folder / "out"), **changes}
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    settings = load(_file(tmp_path_factory.mktemp("arena")), {})
    return settings, run_arena(settings, QUIET)


def _without_time(rows):
    return [{name: str(row[name]) for name in SAME} for row in rows]


@pytest.mark.slow
def test_the_table_has_every_run_of_the_plan(done):
    settings, rows = done
    trials = 3 * 2 * 2 * 2 * 2  # constraints, thresholds, rates, seeds, tasks
    tests = 3 * 2 * 3  # constraints, seeds, two tasks and an axis
    assert len(rows) == trials + tests
    keys = {tuple(str(row[name]) for name in
                  ("stage", "design", "task", "constraint", "label", "learning_rate", "seed"))
            for row in rows}  # fmt: skip
    assert len(keys) == len(rows)
    stored = read_runs(settings.output_dir / "runs.parquet")
    for row, again in zip(rows, stored, strict=True):
        for name, value in row.items():
            same = again[name] == pytest.approx(value, nan_ok=True) if value != "" else True
            assert same if not isinstance(value, str) else again[name] == value
    assert any(row["end"] != row["start"] for row in rows)
    assert all(0 <= row["passk"] <= 1 for row in rows)


@pytest.mark.slow
def test_the_best_trial_is_the_one_that_is_tested(done):
    settings, rows = done
    for task in settings.tasks:
        own = [row for row in rows if row["task"] == task]
        means = {}
        for row in own:
            if row["stage"] == "tuning":
                key = (row["constraint"], row["label"], row["learning_rate"])
                means.setdefault(key, []).append(row["end"])
        for constraint in settings.constraints:
            best = max(sum(v) / len(v) for k, v in means.items() if k[0] == constraint)
            tested = {(r["label"], r["learning_rate"]) for r in own
                      if r["stage"] == "test" and r["constraint"] == constraint}  # fmt: skip
            ((label, rate),) = tested  # the same with the axis and without
            assert sum(means[constraint, label, rate]) / 2 == best


def test_the_twin_is_the_same_run_to_the_last_digit(done):
    _, rows = done
    names = [n for n in SAME if n not in ("constraint", "label")]
    of = {name: [{n: str(row[n]) for n in names} for row in rows if row["constraint"] == name]
          for name in ("atr", "twin", "none")}  # fmt: skip
    assert of["twin"] == of["atr"] != of["none"]
    assert any(float(row["gated"]) > 0.01 for row in of["atr"])


def test_a_run_is_the_same_alone(done, tmp_path):
    """Whatever seeds, rates and constraints are trained beside it."""
    _, rows = done
    alone = load(_file(tmp_path, tuning={"first": 101, "count": 1}, learning_rates=[0.1],
                       constraints={"atr": {"name": "atr", "delta": [0.07]}}, controls={},
                       contrasts={}, axes={}), {})  # fmt: skip
    own = run_arena(alone, QUIET)
    one = next(r for r in own if r["stage"] == "tuning" and r["task"] == "many")
    twin = next(r for r in rows if (r["constraint"], r["width"], r["learning_rate"], r["seed"],
                                    r["task"]) == ("atr", 0.07, 0.1, 101, "many"))  # fmt: skip
    different = ("label", "seconds")
    assert {k: str(v) for k, v in one.items() if k not in different} == {
        k: str(v) for k, v in twin.items() if k not in different
    }


@pytest.mark.slow
def test_it_continues_where_it_was_interrupted(done, tmp_path, monkeypatch):
    _, rows = done
    again = load(_file(tmp_path), {})
    compute, count = run.compute, []

    def interrupted(cell):
        if len(count) == 11:
            raise KeyboardInterrupt
        count.append(cell)
        compute(cell)

    monkeypatch.setattr(run, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_arena(again, QUIET)
    table = again.output_dir / "runs.parquet"
    whole = count[:9]  # trials and tests of the first setting
    assert len(read_runs(table)) == sum(cell.runs for cell in whole)
    kept = {cell.path: cell.path.read_bytes() for cell in count}
    monkeypatch.setattr(run, "compute", compute)
    assert _without_time(run_arena(again, QUIET)) == _without_time(rows)
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.slow
def test_several_processes_give_the_same_runs(done, tmp_path):
    _, rows = done
    again = load(_file(tmp_path, tasks={"many": TINY["tasks"]["many"]}, axes={}), {"jobs": 2})
    own = [row for row in rows if row["task"] == "many"]
    assert _without_time(run_arena(again, QUIET)) == _without_time(own)


WRONG = {
    "has 1, 'atr' has 2": {"constraints": {**TINY["constraints"], "clip": {
        "name": "clip", "epsilon": [0.1]}}},
    "go in step, got lengths high 1, low 2": {"constraints": {"c": {
        "name": "clip_higher", "low": [0.1, 0.2], "high": [0.1]}}, "contrasts": {}, "controls": {}},
    "unknown constraint 'art'": {"contrasts": {"a": ["art", "none"]}},
    "unknown task 'may'": {"axes": {"noise": {"task": "may", "depth": 8, "changes": {}}}},
    "seeds must be fresh": {"test": {"first": 101, "count": 4}},
    "sets it itself": {"lab": {"seeds": 3}},
    "names a file": {"constraints": {"a/b": {"name": "clip"}}, "contrasts": {}, "controls": {}},
    "unknown method 'clp'": {"constraints": {"c": {"name": "clp"}}, "contrasts": {},
                             "controls": {}},
    "unknown shape 'mirored'": {"constraints": {**TINY["constraints"], "m": {
        "bounds_of": "atr", "shape": "mirored"}}},
    "constraint with bounds of its own": {"constraints": {**TINY["constraints"], "m": {
        "bounds_of": "twin"}}},
    "no ratio interval": {"constraints": {"full": {"name": "full_kl", "delta": [0.1, 0.2]},
                          "m": {"bounds_of": "full"}}, "contrasts": {}, "controls": {}},
    "gradient of the full KL": {"constraints": {"p": {"name": "ppo_penalty",
                                                      "divergence": "kl_old_new"}},
                                "contrasts": {}, "controls": {}},
    "`depth` must divide": {"depths": {7: {}}, "axes": {}},
    "depth '3' of the axis": {"axes": {"noise": {"task": "many", "depth": 3, "changes": {}}}},
    "duplicate": {"learning_rates": [0.1, 0.1]},
    "the design without one": {"axes": {"main": {"task": "many", "depth": 8, "changes": {}}}},
    "did you mean 'tasks.many.reaches'?": {"tasks": {"many": {"reachs": 0.1}}},
    "`task`": {"tasks": {"mny": {"reaches": 0.1}}, "axes": {}},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_said_before_any_training(message, tmp_path, capsys):
    assert main(["arena", str(_file(tmp_path, **WRONG[message]))]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_table_is_refused(tmp_path, done):
    path = tmp_path / "a.parquet"
    path.write_text("no")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_runs(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"stage": ["test"]}), path)
    with pytest.raises(ValueError, match="not a table of the arena: it lacks design"):
        read_runs(path)
    _, rows = done
    write_runs(path, rows[:3])
    assert len(read_runs(path)) == 3


def test_a_setting_is_in_the_table_once_it_is_complete(done):
    settings, rows = done
    cells = plan.tuning(settings, plan.places(settings)[0])
    assert set(best_trials(cells)) == set(settings.constraints)
    content = cells[0].path.read_bytes()
    cells[0].path.unlink()
    try:
        left = complete_rows(settings)
        assert {row["task"] for row in left} == {"teacher"} and len(left) < len(rows)
    finally:
        cells[0].path.write_bytes(content)
    assert _without_time(complete_rows(settings)) == _without_time(rows)


@pytest.mark.slow
def test_a_constraint_is_tested_at_the_trial_of_another(tmp_path):
    """It has no trials, and its runs are those of its bounds at the other's threshold and rate."""
    constraints = {**TINY["constraints"], "same": {"bounds_of": "atr", "trials_of": "atr"},
                   "mirror": {"bounds_of": "atr", "shape": "mirrored",
                              "trials_of": "atr"}}  # fmt: skip
    settings = load(_file(tmp_path, constraints=constraints, axes={}), {})
    rows = run_arena(settings, QUIET)
    tuned = {row["constraint"] for row in rows if row["stage"] == "tuning"}
    assert tuned == {"none", "atr", "twin"}
    of = {name: [row for row in rows if row["stage"] == "test" and row["constraint"] == name]
          for name in ("atr", "same", "mirror")}  # fmt: skip
    for name in ("same", "mirror"):
        assert [row["width"] for row in of[name]] == [row["width"] for row in of["atr"]]
        rates = [row["learning_rate"] for row in of[name]]
        assert rates == [row["learning_rate"] for row in of["atr"]]
    assert [row["end"] for row in of["same"]] == [row["end"] for row in of["atr"]]
    assert [row["k3"] for row in of["mirror"]] != [row["k3"] for row in of["atr"]]
