"""The centering experiment: its tables are those of the committed runs; its page quotes them."""

import re
from pathlib import Path

import centering
import pytest

from trustclip_lab.stack.results import read

PAGE = Path(__file__).parents[2] / "docs/lab/centering.md"


@pytest.fixture(scope="module")
def runs():
    return {task: read(centering.FOLDER / f"runs-{task}.parquet") for task in centering.TASKS}


def test_the_design_is_complete(runs):
    arms = {f"{method}{end}" for method in centering.METHODS for end in ("", "-centered")}
    cells = {(m, s, r) for m in arms for s in centering.SAMPLERS for r in ("0.003", "0.012")}
    for rows in runs.values():
        keys = {(r["method"], r["sampler"], r["learning_rate"], int(r["seed"])) for r in rows}
        assert len(keys) == len(rows) and keys == {(*c, n) for c in cells for n in range(100, 132)}


def test_the_tables_and_the_page_are_those_of_the_committed_runs(runs):
    text = centering.report(runs)
    assert text == (centering.FOLDER / "tables.md").read_text("utf-8")
    contrasts = text.partition("\n\n")[0].splitlines()[2:]
    page = [line for line in PAGE.read_text("utf-8").splitlines() if "[" in line]
    quoted = [re.sub(r"[*]", "", line).split("|")[3:] for line in page if line.startswith("|")]
    tiny = centering.in_trl(read(centering.FOLDER / "runs-tiny.parquet")).splitlines()[2:]
    assert quoted == [line.split("|")[3:] for line in (*contrasts, *tiny)]


def test_weights_to_an_exact_sampler_have_no_drift(runs):
    for rows in runs.values():
        assert abs(centering.gains(rows, "none", "exact").mean) < 1e-3
