"""The committed runs of the arena: equal budgets, whole settings, fresh seeds, an exact twin."""

import statistics
from pathlib import Path

import pytest
from arena_entry import read_entry

from trustclip.support.jsonl import plain
from trustclip_lab.arena import plan
from trustclip_lab.arena.run import load
from trustclip_lab.arena.table import COLUMNS, read_runs
from trustclip_lab.recipes import ARENA

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "lab/benchmarks/arena"
RECIPE = ARENA / "arena.yaml"


@pytest.fixture(scope="module")
def settings():
    return load(RECIPE, {})


@pytest.fixture(scope="module")
def rows():
    return read_runs(FOLDER / "runs.parquet")


def test_the_table_is_small_and_its_plan_is_the_recipe(settings):
    assert (FOLDER / "runs.parquet").stat().st_size < 2 * 10**6
    own = read_entry(FOLDER).settings
    different = ("output_dir", "jobs")
    assert {k: v for k, v in plain(own).items() if k not in different} == {
        k: v for k, v in plain(settings).items() if k not in different
    }


def test_every_setting_is_complete(settings, rows):
    found = {}
    for row in rows:
        key = (row["stage"], row["design"], row["task"], row["depth"])
        runs = found.setdefault(key, {}).setdefault(row["constraint"], set())
        runs.add((row["label"], row["learning_rate"], row["seed"]))
    tests = [key for key in found if key[0] == "test"]
    assert len(tests) >= 3
    for key in tests:
        assert set(found[key]) == set(settings.constraints)
        for runs in found[key].values():
            assert {seed for _, _, seed in runs} == set(settings.test.numbers)
            assert len(runs) == settings.test.count
    for key in found.keys() - set(tests):
        trials = len(settings.learning_rates) * 5
        assert {len(runs) for runs in found[key].values()} == {trials * settings.tuning.count}


def test_what_was_tested_is_what_tuning_chose(settings, rows):
    means = {}
    for row in rows:
        if row["stage"] == "tuning":
            place = (row["task"], row["depth"], row["constraint"])
            trial = (row["label"], row["learning_rate"])
            means.setdefault(place, {}).setdefault(trial, []).append(row["end"])
    for row in rows:
        if row["stage"] == "test":
            own = means[row["task"], row["depth"], row["constraint"]]
            best = max(statistics.mean(ends) for ends in own.values())
            # The table has float32, in which means that were equal may differ in the last digit.
            chosen = statistics.mean(own[row["label"], row["learning_rate"]])
            assert chosen == pytest.approx(best, rel=1e-6)


def test_the_twin_is_atr_in_every_run(rows):
    names = [name for name in COLUMNS if name not in ("constraint", "label", "seconds")]
    of = {
        name: [[str(row[n]) for n in names] for row in rows if row["constraint"] == name]
        for name in ("atr", "twin")
    }
    assert of["atr"] == of["twin"] and len(of["atr"]) > 300


def test_mirror_and_symmetric_bound_are_as_wide(settings):
    found = plan.variants(settings)
    for label in ("mirrored", "symmetric", "twin"):
        for ours, theirs in zip(found["atr"], found[label], strict=True):
            low, high = ours.method.log_interval()
            other_low, other_high = theirs.method.log_interval()
            assert other_high - other_low == pytest.approx(high - low, rel=1e-12)
            assert ours.width == theirs.width


def test_nothing_saturates(settings, rows):
    """No ceiling and no floor: the best constraint of a setting ends below 90 %, all above 5 %."""
    ends = {}
    for row in rows:
        if row["stage"] == "test":
            key = (row["design"], row["task"], row["depth"], row["constraint"])
            ends.setdefault(key, []).append(row["end"])
    means = [statistics.mean(found) for found in ends.values()]
    assert max(means) < 0.9 and min(means) > 0.05
