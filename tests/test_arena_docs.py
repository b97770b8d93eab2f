"""The arena's page in the documentation says what the committed table says."""

import re
from pathlib import Path

import numpy as np
import pytest
from doc_pages import assert_alike
from scipy import stats

parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/arena.md"
TOLD = "python benchmarks/arena_report.py"


#: Tables of runs, the block of the page with their contrasts, how many, margin, settings of a seed.
PARTS = [
    ("arena", "contrasts", 8, 0.01, 6),
    ("arena-first", "first-contrasts", 8, 0.01, 6),
    ("arena-same-trial", "same-contrasts", 2, 0.01, 6),
    ("arena-trl", "trl-contrasts", 3, 0.03, 1),
    ("arena-transformer", "larger-contrasts", 3, 0.01, 3),
    ("arena-trl-small", "trl-small-contrasts", 2, 0.03, 1),
]


def columns_of(folder: str) -> dict[str, np.ndarray]:
    """Columns of a table of runs."""
    table = parquet.read_table(ROOT / "benchmarks" / folder / "runs.parquet")
    return {n: np.array(table[n].to_pylist()) for n in table.column_names}


def ends(columns: dict[str, np.ndarray], constraint: str) -> dict[tuple[int, str, int], float]:
    """(seed, task, depth) -> score at the end, of the main design's test runs."""
    chosen = (
        (columns["stage"] == "test")
        & np.isin(columns["design"], ["main", "trl"])
        & (columns["constraint"] == constraint)
    )
    keys = zip(*(columns[n][chosen].tolist() for n in ("seed", "task", "depth")), strict=True)
    return dict(zip(keys, columns["end"][chosen].astype(float).tolist(), strict=True))


@pytest.mark.parametrize(("folder", "name", "count", "margin", "settings"), PARTS)
def test_the_contrasts_follow_from_the_table(folder, name, count, margin, settings) -> None:
    """Anew from the runs alone: seed by seed, over tasks and depths; Student's interval."""
    row = (
        r"^\| .*? \(([\w-]+) − ([\w-]+)\) \| \**([+−]?[\d.]+)\** \[(.*?), (.*?)\] (\w+(?: \w+)*) \|"
    )
    rows = re.findall(row, block(name), re.M)
    assert len(rows) == count
    follow(columns_of(folder), rows, margin, settings)


@pytest.mark.parametrize(("depth", "place"), [(4, 2), (256, 6)])
def test_what_was_tested_at_the_other_depths_follows_from_its_table(depth, place) -> None:
    rows = []
    for line in re.findall(r"^\| .*? \(atr − .*$", block("ends"), re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        pair = re.search(r"\(([\w-]+) − ([\w-]+)\)", cells[0])
        tested = re.match(r"\**([+−]?[\d.]+)\** \[(.*?), (.*?)\] (.*)", cells[place])
        assert pair and tested
        rows.append((*pair.groups(), *tested.groups()))
    assert len(rows) == 4
    follow(columns_of(f"arena-depth-{depth}"), rows, 0.01, 3)


def block(name: str) -> str:
    """What stands in the page between the marks of this name."""
    found = re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", PAGE.read_text("utf-8"), re.S)
    assert found is not None
    return found[1]


def follow(columns: dict[str, np.ndarray], rows: list, margin: float, settings: int) -> None:
    """Every printed difference, interval and conclusion is that of the runs."""
    p_values, margins = [], []
    for ours, theirs, value, low, high, _ in rows:
        a, b = ends(columns, ours), ends(columns, theirs)
        assert a.keys() == b.keys()
        seeds = sorted({seed for seed, _, _ in a})
        assert len(a) == settings * len(seeds)
        gaps = [float(np.mean([a[k] - b[k] for k in a if k[0] == seed])) for seed in seeds]
        mean, error = float(np.mean(gaps)), float(np.std(gaps, ddof=1) / np.sqrt(len(gaps)))
        half = stats.t.ppf(0.975, len(gaps) - 1) * error
        printed = [float(text.replace("−", "-")) for text in (value, low, high)]
        assert printed == pytest.approx(
            [100 * mean, 100 * (mean - half), 100 * (mean + half)], abs=0.0501
        )
        p_values.append(float(2 * stats.t.sf(abs(mean) / error, len(gaps) - 1)))
        margins.append(float(stats.t.cdf((abs(mean) - margin) / error, len(gaps) - 1)))
    some, none = (holm(p) for p in (p_values, margins))
    for i, (_, _, value, *_, word) in enumerate(rows):
        differs = "smaller" if value.startswith("−") else "larger"
        expected = "equivalent" if none[i] <= 0.05 else differs if some[i] <= 0.05 else None
        assert word == (expected or "not told apart")


def holm(p_values: list[float]) -> list[float]:
    """Holm's correction, written once more."""
    order = np.argsort(p_values)
    adjusted, worst = [0.0] * len(order), 0.0
    for rank, place in enumerate(order):
        worst = max(worst, (len(order) - rank) * p_values[place])
        adjusted[place] = worst
    return adjusted


def test_the_twin_is_the_same_in_every_run() -> None:
    columns = columns_of("arena")
    ours, twin = ends(columns, "atr"), ends(columns, "twin")
    assert ours == twin and len(ours) > 100


def test_the_tables_are_compact() -> None:
    tables = list((ROOT / "benchmarks").glob("arena*/*.parquet"))
    assert len(tables) >= 4 and sum(table.stat().st_size for table in tables) < 2_000_000


def test_what_is_said_of_the_larger_policy_in_trl_follows_from_its_table() -> None:
    columns = columns_of("arena-trl-small")
    test = columns["stage"] == "test"
    led = test & np.isin(columns["seed"], [209, 210])
    spans = [
        [100 * columns[name][chosen].min(), 100 * columns[name][chosen].max()]
        for name, chosen in (("end", led), ("end", test & ~led), ("start", test & ~led))
    ]
    high, low, before = ([f"{value:.0f}" for value in span] for span in spans)
    said = " ".join(PAGE.read_text("utf-8").split())
    assert "at {} to {} % under all three constraints".format(*high) in said
    assert "the others at {} to {} %".format(*low) in said
    assert "with {:.0f} % against".format(100 * columns["start"][led].min()) in said
    assert "against {} to {} %".format(*before) in said
    passed = {
        name: columns["passk"][test & (columns["constraint"] == name)].mean()
        for name in ("atr", "clip")
    }
    assert round(100 * (passed["clip"] - passed["atr"])) == 9


@pytest.mark.parametrize("folder", [part[0] for part in PARTS if part[0].startswith("arena-trl")])
def test_the_confirmations_were_tuned_as_they_say(folder) -> None:
    """Every constraint at the best of the same rates on the tuning seeds, of equal ones the lower;
    and what each problem's answers come to is the score of the run."""
    columns = columns_of(folder)
    tuning, main = columns["stage"] == "tuning", columns["design"] == "trl"
    main &= ~tuning
    trials = {}
    for name, rate, end in zip(
        *(columns[n][tuning].tolist() for n in ("constraint", "learning_rate", "end")), strict=True
    ):
        trials.setdefault(name, {}).setdefault(rate, []).append(end)
    assert len({tuple(sorted(own)) for own in trials.values()}) == 1
    for name, own in trials.items():
        best = max(sorted(own), key=lambda rate: np.mean(own[rate]))
        tested = columns["learning_rate"][main & (columns["constraint"] == name)]
        assert set(tested.tolist()) == {best}
    assert not set(columns["seed"][tuning].tolist()) & set(columns["seed"][~tuning].tolist())
    answers = parquet.read_table(ROOT / "benchmarks" / folder / "answers.parquet").to_pylist()
    scores = {(row["constraint"], row["seed"]): np.mean(row["right"]) / 4 for row in answers}
    for name in trials:
        for (seed, *_), end in ends(columns, name).items():
            assert scores[name, seed] == pytest.approx(end, abs=1e-6)


@pytest.mark.slow
def test_every_block_of_the_page_is_as_the_program_writes_it() -> None:
    from arena_parts import Parts
    from arena_report import FOLDER, PAPER, blocks, filled

    from trustclip.arena.entry import read_entry
    from trustclip.arena.page import contents, tables_text

    entry = read_entry(FOLDER)
    found = contents(entry, entry.links("methods/{}.md"))
    made = blocks(Parts(entry), found)
    for page in (PAGE, PAPER):
        text = page.read_text(encoding="utf-8")
        assert_alike(filled(text, made), text, TOLD)
    tables, stored = tables_text(found), (FOLDER / "tables.md").read_text(encoding="utf-8")
    assert_alike(tables, stored[-len(tables) :], TOLD)
