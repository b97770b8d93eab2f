"""The committed runs of the arena: equal budgets, whole settings, fresh seeds, an exact twin."""

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
