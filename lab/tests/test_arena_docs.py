"""The arena's page in the documentation says what the committed table says."""

import re
from pathlib import Path

import numpy as np
import pytest
from doc_pages import assert_alike
from scipy import stats

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


def shown(values: np.ndarray) -> str:
    """A mean in points with Student's interval, as the pages print it."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    one, low, high = (
        100 * float(x) for x in (values.mean(), values.mean() - half, values.mean() + half)
    )
    sign = "" if f"{abs(one):.1f}" == "0.0" else "+" if one > 0 else "−"
    low, high = ("0.0" if f"{abs(x):.1f}" == "0.0" else f"{x:.1f}" for x in (low, high))
    return f"{sign}{abs(one):.1f} [{low}, {high}]".replace("-", "−")


def rows_of(name: str) -> dict[str, list[str]]:
    """Constraint that atr is compared with -> cells of its row in a block."""
    found = re.findall(r"^\| .*?\(atr − ([\w-]+)\) \| (.*) \|$", block(name), re.M)
    return {theirs: cells.split(" | ") for theirs, cells in found}


def test_the_contrasts_by_setting_and_whether_they_are_one_number() -> None:
    columns, rows = columns_of("arena"), rows_of("settings-contrasts")
    assert len(rows) == 8
    for theirs, cells in rows.items():
        found = by_setting(ends(columns, "atr"), ends(columns, theirs))
        assert cells[:6] == [shown(found[place]) for place in sorted(found)]
        q, p = cochran(found)
        assert cells[6] == f"{q:.0f}" and float(cells[7]) == pytest.approx(p, rel=0.5)
        assert p < 0.05  # none of them is one number


def test_a_constraint_helps_in_teacher_in_every_setting() -> None:
    said, above = " ".join(PAGE.read_text("utf-8").split()), 0
    tables = ["arena-first", "arena", "arena-depth-4", "arena-depth-256", "arena-transformer"]
    for folder in tables:
        columns = columns_of(folder)
        found = by_setting(ends(columns, "atr"), ends(columns, "none"))
        for (task, _), values in found.items():
            if task == "teacher":
                text = shown(values)
                assert text in said and text.startswith("+") and "[−" not in text
                above += 1
    assert above == 7 and "it is above 0 in 7 of 7 settings" in said


def test_trials_and_seeds_crossed_follow_from_their_tables() -> None:
    first, again, crossed = (columns_of(f"arena{name}") for name in ("-first", "", "-crossed"))

    def pairs(columns: dict, theirs: str, design: str) -> dict[int, float]:
        ends: dict[str, dict] = {"atr": {}, theirs: {}}
        kept = (columns["stage"] == "test") & (columns["design"] == design)
        kept &= (columns["task"] == "many") & np.isin(columns["constraint"], [*ends])
        for i in np.flatnonzero(kept):
            key = int(columns["seed"][i]), int(columns["depth"][i])
            ends[columns["constraint"][i]][key] = float(columns["end"][i])
        assert ends["atr"].keys() == ends[theirs].keys()
        seeds = sorted({seed for seed, _ in ends["atr"]})
        return {
            s: float(np.mean([ends["atr"][s, d] - ends[theirs][s, d] for d in (16, 64)]))
            for s in seeds
        }

    rows, told = rows_of("crossed-many"), 0
    assert len(rows) == 8
    for theirs, cells in rows.items():
        found = [pairs(first, theirs, "main"), pairs(crossed, theirs, "first"),
                 pairs(crossed, theirs, "again"), pairs(again, theirs, "main")]  # fmt: skip
        assert [len(one) for one in found] == [64, 128, 64, 128]
        trials = [found[0][s] - found[2][s] for s in found[0]]
        trials += [found[1][s] - found[3][s] for s in found[1]]
        every = [*(np.array([*one.values()]) for one in found), np.array(trials)]
        assert cells == [shown(values) for values in every]
        told += 8 <= round(100 * np.mean(trials)) <= 14
    assert told == 5 and "8 to 14 points apart for five contrasts" in PAGE.read_text("utf-8")


def test_the_experiments_in_trl_taken_together() -> None:
    said = " ".join(PAGE.read_text("utf-8").split())
    for theirs in ("clip", "none"):
        for column in ("end", "area"):
            gaps: list[float] = []
            for folder in ("arena-trl", "arena-trl-small"):
                columns = columns_of(folder)
                kept = (columns["stage"] == "test") & (columns["design"] == "trl")
                of = {
                    name: dict(zip(columns["seed"][chosen].tolist(),
                                   columns[column][chosen].astype(float).tolist(), strict=True))
                    for name in ("atr", theirs)
                    for chosen in [kept & (columns["constraint"] == name)]
                }  # fmt: skip
                gaps += [of["atr"][seed] - of[theirs][seed] for seed in of["atr"]]
            assert len(gaps) == 36
            assert shown(np.array(gaps)) in said
            assert shown(np.array(gaps)).lstrip("+") in said


def test_numbers_of_the_readme_and_of_the_short_page_stand_on_the_whole_one() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    ours = readme[readme.index("What a constraint is worth") : readme.index("The exact KL is")]
    page, short = PAGE.read_text("utf-8"), SHORT.read_text("utf-8")
    assert len(short.split()) < 500
    for text, count in ((ours, 2), (short, 11)):
        numbers = re.findall(r"[+−]?[\d.]+ (?:points )?\[[−\d.]+, [−\d.]+\]", text)
        assert len(numbers) == count
        assert all(number.replace("points ", "") in page for number in numbers)


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
    tables = list((ROOT / "lab/benchmarks").glob("arena*/*.parquet"))
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
