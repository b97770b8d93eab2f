"""What docs/control.md concludes follows from the means and intervals in its table."""

import re
from math import sqrt
from pathlib import Path

import pytest
from scipy.stats import t as student

from trustclip.stats import RunSummary, holm, welch
from trustclip.stats.equivalence import concluded, welch_equivalence_p

PAGE = (Path(__file__).parents[1] / "docs/control.md").read_text(encoding="utf-8")
SEEDS = 5


def summary(text: str) -> RunSummary:
    """Mean and spread of five runs from ``72 [13, 131]``."""
    mean, low, high = map(float, re.findall(r"-?\d+", text))
    return RunSummary(
        mean, (high - low) / 2 / float(student.ppf(0.975, SEEDS - 1)) * sqrt(SEEDS), SEEDS
    )


def compared() -> list[tuple[str, str, str, str, float, float]]:
    """(environment, method, return, printed p, p, p of equivalence) of every comparison."""
    lines = [[cell.strip() for cell in line.strip(" |").split("|")] for line in PAGE.splitlines()]
    rows = [cells for cells in lines if len(cells) == 10 and re.match(r"-?\d+ \[", cells[2])]
    base = {cells[0]: cells for cells in rows if cells[1] == "clip 0.2"}
    found = []
    for cells in rows:
        for name, place in (("final", 2), ("training", 5)):
            if cells[1] != "clip 0.2":
                own, other = summary(cells[place]), summary(base[cells[0]][place])
                same = welch_equivalence_p(own, other, 0.1 * other.mean)
                found.append((*cells[:2], name, cells[place + 2], welch(own, other).p, same))
    return found


def test_the_page_concludes_what_its_table_says() -> None:
    found = compared()
    assert len(found) == 30
    some, none = (holm([row[i] for row in found]).tolist() for i in (4, 5))
    for (*_, printed, _, _), p in zip(found, some, strict=True):
        if not printed.startswith("<"):
            assert p == pytest.approx(float(printed), rel=0.3)  # from rounded means
        else:
            assert p < 0.00105
    said = [concluded(1.0, p, q) for p, q in zip(some, none, strict=True)]
    assert said.count("equivalent") == 0 and "none is equivalent within a tenth" in PAGE
    differ = [row[2] for row, word in zip(found, said, strict=True) if word == "larger"]
    assert (len(differ), differ.count("final")) == (9, 1)
    assert "9 differ, 1 of them in the final return" in PAGE
    assert round(min(none), 2) == 0.17
