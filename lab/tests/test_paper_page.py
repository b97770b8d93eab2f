"""docs/lab/paper.md: every command on the page runs and prints the numbers that the page quotes."""

import csv
import re
from pathlib import Path

import pytest

from trustclip.cli.main import main
from trustclip_lab.paper.audit import audit

DOCS = Path(__file__).parents[2] / "docs/lab"
PAGE = " ".join((DOCS / "paper.md").read_text(encoding="utf-8").split())

#: Command of the page, and (what it prints, what the page makes of it).
SHOWN = {
    "theory": [
        ("median 7.3 times the true value, wrong sign in 5.5%", "5.5 and 7.3 in its two cases"),
        ("median 5.5 times the true value, wrong sign in 4.4%", "in 4 to 6 % of the states"),
        ("fails: wrong in 60% of the states", "5.1 fails in 51 to 60 % of the states"),
        ("fails: wrong in 51% of the states", "5.1 fails in 51 to 60 % of the states"),
        ("not for p > 1/u, 0.7031 at delta 0.07", "above 0.70, at δ = 0.07"),
        ("p > 1/(2 - l), 0.7524 at delta 0.07", "above 0.75 the reachable interval"),
        ("u + l - 2 is 0.832 to 1.000 of 4 delta / 3", "by 4δ/3 to first order"),
    ],
    "paper": [
        ('"cells": 180, "faults": []', "All 180 scores of Table 2"),
        ('"population": 64, "sample": 0', "64 cells fit only this divisor"),
        ('"ratio": 1.0007', "1.00 times in Mean@8, p = 0.46"),
        ('"p_equal": 0.3602', "Bartlett's test does not object, p = 0.36"),
        ("0.082, 0.242", "2 points in 8 % of cases and one of 3 points in 24"),
        ('"contaminated": 55, "amc": 83', "55 of the 83 AMC problems"),
    ],
    "bounds atr --delta 0.07": [
        ("clip_higher --low 0.329028261750126 --high 0.42221", "clip-higher with 0.329028 and"),
    ],
    "doctor --gradient-accumulation-steps 4": [
        ("each generation is used for 1 optimizer update", "there is one update per generation"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "theory")) for name in SHOWN],
)
def test_the_page_quotes_what_the_command_prints(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert f"`trustclip {command}`" in PAGE
    main(command.split())
    printed = " ".join(capsys.readouterr().out.split())
    for there, here in SHOWN[command]:
        assert there in printed
        assert here in PAGE


def test_the_scores_of_table_2_are_counted_from_its_file():
    """The page once said 192: base models have no best score."""
    with (DOCS.parents[1] / "lab/src/trustclip_lab/paper/data/paper_table2.csv").open(
        encoding="utf-8"
    ) as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if re.fullmatch(r"(amc|aime)\d+_\w+8_(final|best)", name)]
    assert len(names) == 12
    assert sum(bool(row[name]) for row in rows for name in names) == 180


def test_tuned_is_what_the_paper_calls_so():
    """The paper's own: the best of five clips, and those laid around ATR's interval."""
    claims = {c.baseline: c for c in audit().claims if c.metric in ("mean8", "Mean@8")}
    tuned = [name for name in claims if "0.329" in name or "0.422" in name or "∈" in name]
    assert len(tuned) == 5 and len(claims) == 11
    survive = {name for name in tuned if claims[name].p_dunnett <= 0.05}
    assert len(survive) == 3 and "three of these five" in PAGE
    open_ones = {name for name in claims if claims[name].p_dunnett > 0.05}
    assert len(open_ones) == 3 and {n for n in open_ones if n.startswith("KL2")}
    assert "all but these three" in PAGE
