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
PENDULUM = "InvertedPendulum-v5"
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


def test_the_page_concludes_what_its_tables_say() -> None:
    said = {(one.env, one.method, one.name): one.cells[3] for one in compared("control", "clip")}
    smaller = {key for key, word in said.items() if word == "smaller"}
    assert smaller == {
        ("CartPole-v1", "none", "final"),
        ("InvertedDoublePendulum-v5", "none", "final"),
        ("InvertedDoublePendulum-v5", "truly_ppo (truly)", "final"),
    }
    for method in ("clip 0.375", "atr", "full_kl"):
        for name, word in (("training", "larger"), ("final", "inconclusive")):
            assert [said[key] for key in said if key[1:] == (method, name)] == [word] * 3
    for env, reach in (
        ("CartPole-v1", "31 % of the clip's return below it in CartPole"),
        ("InvertedPendulum-v5", "50 % below and 68 % above in InvertedPendulum"),
        ("InvertedDoublePendulum-v5", "8 % below and 16 % above in"),
    ):
        rows = {row[1]: row for row in tables("control")[0] if row[0] == env}
        clip = float(rows["clip"][2].split()[0])
        ends = [
            float(end) / clip
            for method in ("clip 0.375", "atr", "full_kl")
            for end in re.findall(r"[-+]\d+", rows[method][3])[1:]
        ]
        found = [f"{abs(end):.0%}"[:-1] for end in (min(ends), max(ends))]
        shares = re.findall(r"(\d+) %", reach)
        assert reach in PAGE and shares == found[: len(shares)]
    width = {(one.env, one.name): one.cells[3] for one in compared("control-width", "clip 0.375")}
    assert {key: word for key, word in width.items() if word != "inconclusive"} == {
        ("CartPole-v1", "training"): "smaller",
        ("InvertedDoublePendulum-v5", "training"): "smaller, equivalent",
    }
    paper = (ROOT / "docs/lab/paper.md").read_text(encoding="utf-8")
    cells = {tuple(row[:2]): row[2] for row in tables("control")[0]}
    for env in ("CartPole-v1", "InvertedDoublePendulum-v5"):
        assert cells[env, "none"] in paper and cells[env, "clip"] in paper


def test_the_middle_half_follows_from_the_runs() -> None:
    every = runs()
    envs = {env for env, *_ in every}
    for method, text in tables("control-middle")[0]:
        shares = [every[e, method, "final"] / every[e, "clip", "final"].mean() for e in envs]
        middle = stats.trim_mean(np.concatenate(shares), 0.25)
        value, low, high = (float(n) for n in re.findall(r"[\d.]+", text))
        assert value == pytest.approx(middle, abs=0.0051) and low < value < high


def test_what_is_said_beside_the_tables_follows_from_the_runs() -> None:
    every = runs()
    none, clip = (every["CartPole-v1", method, "final"] for method in ("none", "clip"))
    again, fresh = (
        stats.ttest_rel(none[part], clip[part]).pvalue for part in (slice(5), slice(5, None))
    )
    first = [
        stats.ttest_rel(own[:5], every[env, "clip", name][:5]).pvalue
        for (env, method, name), own in every.items()
        if method != "clip"
    ]
    assert round(holm([float(p) for p in first])[first.index(again)], 2) == 0.43
    assert f"gave {none[:5].mean():.0f} against {clip[:5].mean():.0f}, p = 0.43" in PAGE
    assert fresh < 0.001 and f"give {none[5:].mean():.0f} against {clip[5:].mean():.0f}" in PAGE
    ends = [own for (env, _, name), own in every.items() if (env, name) == (PENDULUM, "final")]
    assert f"between {np.min(ends):.0f} and {np.max(ends):.0f}," in PAGE
    moved = {row[1]: [] for row in tables("control")[1]}
    for row in tables("control")[1]:
        moved[row[1]].append(float(row[-1]))
    others = [k3 for method, found in moved.items() if method != "none" for k3 in found]
    shown = [f"{value:.1f}" for value in (min(moved["none"]), max(moved["none"]))]
    shown += [f"{value:.2f}" for value in (min(others), max(others))]
    assert "the mean k3 is {} to {} nats instead of {} to {}".format(*shown) in PAGE
