"""The arena's page in the documentation says what the committed table says."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from test_claims import assert_alike
from test_control_page import holm

parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
PAGE, SHORT = ROOT / "docs/lab/arena-results.md", ROOT / "docs/lab/arena.md"
TOLD = "python lab/benchmarks/arena_report.py"


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
    table = parquet.read_table(ROOT / "lab/benchmarks" / folder / "runs.parquet")
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


def block(name: str) -> str:
    """What stands in the page between the marks of this name."""
    found = re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", PAGE.read_text("utf-8"), re.S)
    assert found is not None
    return found[1]


def follow(columns: dict[str, np.ndarray], rows: list, margin: float, settings: int) -> None:
    """Every printed difference, interval and conclusion is that of the runs."""
    p_values, margins, alike = [], [], []
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
        alike.append(settings == 1 or cochran(by_setting(a, b))[1] > 0.05)
    some, none = (holm(p) for p in (p_values, margins))
    for i, (_, _, value, *_, word) in enumerate(rows):
        differs = "smaller" if value.startswith("−") else "larger"
        same = "equivalent" if alike[i] else "equivalent in the mean alone"
        expected = same if none[i] <= 0.05 else differs if some[i] <= 0.05 else None
        assert word == (expected or "inconclusive")


def by_setting(a: dict, b: dict) -> dict[tuple[str, int], np.ndarray]:
    """(task, depth) -> differences of the seeds."""
    found: dict[tuple[str, int], list[float]] = {}
    for key in sorted(a):
        found.setdefault(key[1:], []).append(a[key] - b[key])
    return {place: np.array(values) for place, values in found.items()}


def cochran(found: dict) -> tuple[float, float]:
    """Cochran's Q and its p, written once more."""
    means = np.array([values.mean() for values in found.values()])
    weights = np.array([len(values) / values.var(ddof=1) for values in found.values()])
    q = float((weights * (means - np.average(means, weights=weights)) ** 2).sum())
    return q, float(stats.chi2.sf(q, len(means) - 1))


def test_numbers_of_the_short_page_stand_on_the_whole_one() -> None:
    page, short = PAGE.read_text("utf-8"), SHORT.read_text("utf-8")
    assert len(short.split()) < 500
    numbers = re.findall(r"[+−]?[\d.]+ (?:points )?\[[−\d.]+, [−\d.]+\]", short)
    assert len(numbers) == 11
    assert all(number.replace("points ", "") in page for number in numbers)


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
    answers = parquet.read_table(ROOT / "lab/benchmarks" / folder / "answers.parquet").to_pylist()
    scores = {(row["constraint"], row["seed"]): np.mean(row["right"]) / 4 for row in answers}
    for name in trials:
        for (seed, *_), end in ends(columns, name).items():
            assert scores[name, seed] == pytest.approx(end, abs=1e-6)


@pytest.mark.slow
def test_every_block_of_the_page_is_as_the_program_writes_it() -> None:
    from arena_entry import read_entry
    from arena_page import contents, tables_text
    from arena_parts import Parts
    from arena_report import FOLDER, OTHERS, PAPER, blocks, filled

    entry = read_entry(FOLDER)
    found = contents(entry, entry.links("../methods/{}.md"))
    made = blocks(Parts(entry), found)
    for page in (PAGE, PAPER):
        text = page.read_text(encoding="utf-8")
        assert_alike(filled(text, made, OTHERS), text, TOLD)
    tables, stored = tables_text(found), (FOLDER / "tables.md").read_text(encoding="utf-8")
    assert_alike(tables, stored[-len(tables) :], TOLD)
