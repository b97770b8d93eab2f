"""What docs/lab/control.md shows and concludes follows from the committed runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from pyarrow import parquet
from scipy import stats

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/lab/control.md").read_text(encoding="utf-8")
LABELS = {
    "{name: clip, epsilon: 0.375}": "clip 0.375",
    "{name: truly_ppo, variant: truly}": "truly_ppo (truly)",
}


class Compared(NamedTuple):
    """A return of a method beside the clip's, tested here."""

    env: str
    method: str
    name: str
    p: float
    same: float
    cells: list[str]


def runs() -> dict[tuple[str, str, str], np.ndarray]:
    """(environment, method, return) -> the return of every seed."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in parquet.read_table(ROOT / "lab/benchmarks/control/runs.parquet").to_pylist():
        method: str = row["method"]
        for name in ("final", "training"):
            key = (row["env"], LABELS.get(method, method), name)
            found.setdefault(key, []).append(row[name])
    return {key: np.array(values) for key, values in found.items()}


def tables(name: str) -> list[list[list[str]]]:
    """Cells of the tables of a block of the page."""
    block = PAGE[PAGE.index(f"<!-- {name} -->") : PAGE.index(f"<!-- /{name} -->")]
    found = [part.splitlines() for part in block.split("\n\n") if part.startswith("|")]
    return [[line.strip(" |").split(" | ") for line in lines[2:]] for lines in found]


def compared(name: str, base: str) -> Iterator[Compared]:
    """Every comparison of a block, tested here."""
    every = runs()
    for outcome, rows in zip(("final", "training"), tables(name), strict=True):
        for cells in rows:
            own, other = (every[cells[0], label, outcome] for label in (cells[1], base))
            half = stats.t.ppf(0.975, len(own) - 1) * stats.sem(own)
            assert_printed(cells[2], own.mean(), own.mean() - half, own.mean() + half)
            if cells[1] != base:
                test = stats.ttest_rel(own, other)
                apart = test.confidence_interval()
                assert_printed(cells[3], own.mean() - other.mean(), apart.low, apart.high)
                margin = 0.1 * other.mean()
                above = stats.ttest_rel(own + margin, other, alternative="greater").pvalue
                below = stats.ttest_rel(own - margin, other, alternative="less").pvalue
                tested = float(test.pvalue), float(max(above, below))
                shown = cells[3:7]
                yield Compared(cells[0], cells[1], outcome, *tested, shown)


def assert_printed(text: str, *expected: float) -> None:
    """A mean and its interval are as printed."""
    assert [float(n) for n in re.findall(r"[-+]?\d+", text)] == pytest.approx(expected, abs=0.51)


def holm(p_values: list[float]) -> list[float]:
    """Holm's correction, written once more."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values)):
        worst = min(max(worst, (len(p_values) - rank) * p_values[place]), 1.0)
        adjusted[place] = worst
    return adjusted


@pytest.mark.parametrize(
    ("block", "base", "count"), [("control", "clip", 30), ("control-width", "clip 0.375", 6)]
)
def test_tables_follow_from_the_runs(block: str, base: str, count: int) -> None:
    found = list(compared(block, base))
    assert len(found) == count
    some, none = holm([one.p for one in found]), holm([one.same for one in found])
    for one, p, same in zip(found, some, none, strict=True):
        gap, different, equivalent, said = one.cells
        differs = "larger" if gap.startswith("+") else "smaller"
        words = [differs] * (p <= 0.05) + ["equivalent"] * (same <= 0.05)
        assert said == (", ".join(words) or "inconclusive")
        assert float(different) == pytest.approx(p, rel=0.06, abs=1e-15)
        assert float(equivalent) == pytest.approx(same, rel=0.06, abs=1e-15)
