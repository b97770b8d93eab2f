"""The mismatch experiment: its tables are those of the committed runs; its README quotes them."""

from pathlib import Path

import mismatch_report
import numpy as np
import pytest
from early_warning import Observation, alarm, auc, auc_interval

from trustclip_lab.stack.results import read

FOLDER = Path(__file__).parents[1] / "benchmarks" / "mismatch-tiny"
DOC = FOLDER / "README.md"
TASK = "needle"


@pytest.fixture(scope="module")
def runs():
    return read(FOLDER / f"runs-{TASK}.parquet")


def test_the_tables_are_those_of_the_committed_runs():
    assert mismatch_report.tables(TASK) == (FOLDER / f"tables-{TASK}.md").read_text()


def test_what_a_corrected_method_does_with_an_exact_sampler_is_its_inner_one(runs):
    """The negative control: the weight is 1, so every run of both is the same to the last digit."""
    trials = read(FOLDER / f"tuning-{TASK}.parquet")
    end = {(r["method"], r["sampler"], r["learning_rate"]): r["end"] for r in trials}
    for (method, sampler, rate), value in end.items():
        family, _, variant = method.partition("-")
        if sampler == "exact" and family in ("tis", "icepop"):
            assert value == end[f"clip-{variant}", sampler, rate]


def test_the_readme_quotes_the_tables():
    tables = {}
    for part in (FOLDER / f"tables-{TASK}.md").read_text().split("\n## ")[1:]:
        rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line[:2] == "| "]
        tables[part.partition("\n")[0]] = dict((row[0], row[-1]) for row in rows)
    quoted = [
        tables[name]
        for name in (
            "Minus an exact sampler, points, carried",
            "Minus an exact sampler, points, stress",
            "Collapsed, stress",
        )
    ]
    section = DOC.read_text().partition("| lag 4 | carried | stress | collapsed, stress |\n")[2]
    rows = [line.strip("| ").split(" | ") for line in section.partition("\n\n")[0].splitlines()]
    assert rows[1:] == [[m, *(table[m] for table in quoted)] for m in quoted[0] if m != "method"]


def test_the_area_is_the_share_of_pairs_won():
    random = np.random.default_rng(0)
    runs = [
        Observation(int(random.integers(8)), int(random.integers(2)), bool(random.random() < 0.3),
                float(random.integers(5)))
        for _ in range(80)
    ]  # fmt: skip
    won = pairs = 0.0
    for a in runs:
        for b in runs:
            if a.among == b.among and a.collapsed and not b.collapsed:
                won += (a.value > b.value) + 0.5 * (a.value == b.value)
                pairs += 1
    assert auc(runs) == pytest.approx(won / pairs)
    its = auc_interval(runs)
    assert its.low < its.value < its.high and its.value == auc(runs)


def test_an_alarm_is_before_the_fall_or_not_at_all():
    quiet = [[0.1, 0.2]] * 20
    found = alarm([([0.1, 0.1, 0.9], 2), ([0.9, 0.1, 0.1], 2)], quiet, 0.05)
    assert (found.recall, found.lead) == (0.5, 2.0)
    assert alarm([], quiet, 0.05).threshold == pytest.approx(0.2)
