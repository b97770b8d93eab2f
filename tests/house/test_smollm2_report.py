"""The report of the runs with SmolLM2: its numbers made anew, and what is left out."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from trl_runs import needs

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402
import smollm2_report as report  # noqa: E402
import smollm2_theorem as theorem  # noqa: E402

SEEDS, RATES = range(8), (3e-5, 9e-5)
#: Share of right answers that an arm's policy has in the last generation, by rate.
LEVELS = {"atr": (0.8, 0.8), "clip": (0.55, 0.8), "mirror": (0.8, 0.8), "none": (0.55, 0.55)}


def made(folder: Path, *, lost: tuple[Any, ...] = ()) -> Path:
    """Tables of runs whose scores rise in a line; of the run ``lost`` all after generation 5."""
    rng = np.random.default_rng(0)
    generations: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for arm, levels in LEVELS.items():
        for rate, level in zip(RATES, levels, strict=True):
            for seed in SEEDS:
                run = {"arm": arm, "rate": rate, "seed": seed}
                for number in range(1, 6 if lost == (arm, rate, seed) else 17):
                    share = 0.3 + (level - 0.3) * number / 16 + 0.02 * np.sin(seed + number)
                    generations.append(
                        {
                            **run,
                            "generation": number,
                            "right": int(rng.binomial(64, share)),
                            "entropy": 1.0 - 0.05 * number,
                            "gated": None if arm == "none" else 0.02,
                            "k3": 0.001 / level,
                        }
                    )
                for update, score in ((0, 0.3), (256, level)):
                    right = rng.binomial(4, score, size=128).tolist()
                    answers += [
                        {**run, "update": update, "problem": str(n), "samples": 4, "right": r}
                        for n, r in enumerate(right)
                    ]
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(generations), folder / "generations.parquet")
    parquet.write_table(pa.Table.from_pylist(answers), folder / "answers.parquet")
    return folder


def areas(folder: Path) -> dict[tuple[str, float, int], float]:
    found: dict[tuple[str, float, int], float] = {}
    for row in parquet.read_table(folder / "generations.parquet").to_pylist():
        key = row["arm"], row["rate"], row["seed"]
        found[key] = found.get(key, 0.0) + row["right"] / 832 * (row["generation"] >= 4)
    return found


def test_contrasts_are_paired_t_tests_of_blocks_with_holms_correction(tmp_path: Path) -> None:
    folder = made(tmp_path)
    area = areas(folder)
    p_values = {}
    for arm in ("clip", "mirror", "none"):
        blocks = [
            np.mean([area["atr", rate, seed] - area[arm, rate, seed] for rate in RATES])
            for seed in SEEDS
        ]
        test: Any = stats.ttest_1samp(blocks, 0)
        p_values[arm] = test.pvalue
        found = report.tested(report.read(folder))[arm].difference
        low, high = test.confidence_interval(0.95)
        assert (found.value, found.low, found.high) == pytest.approx((np.mean(blocks), low, high))
    ordered = sorted(p_values, key=lambda arm: p_values[arm])
    corrected, before = {}, 0.0
    for times, arm in zip((3, 2, 1), ordered, strict=True):
        corrected[arm] = before = max(before, min(times * p_values[arm], 1.0))
    for arm, one in report.tested(report.read(folder)).items():
        assert one.p_holm == pytest.approx(corrected[arm])


def test_the_theorem_is_compared_with_its_predictions_in_any_order() -> None:
    predicted, came = np.array([1, 1, 1, -1, 2, 0.0]), np.array([1, 1, -1, -1, 1, 1.0])
    orders = [np.array(o) * came[:5] > 0 for o in permutations(predicted[:5])]
    found = theorem.Signs.of(predicted, came)
    assert (found.right, found.total) == (4, 5)
    assert found.expected == pytest.approx(np.mean(orders) * 5)
    assert found.p_base == pytest.approx(np.mean([order.sum() >= 4 for order in orders]))
    x, y = np.random.default_rng(0).normal(size=(2, 24))
    seeds = np.repeat(np.arange(8), 3)
    draws = np.random.default_rng(0).integers(8, size=(10_000, 8))
    rows = [np.concatenate([np.flatnonzero(seeds == seed) for seed in draw]) for draw in draws]
    tail = stats.norm.cdf(np.sqrt(8 / 7) * stats.t.ppf(0.025, 7))
    low, high = np.quantile([np.corrcoef(x[i], y[i])[0, 1] for i in rows], [tail, 1 - tail])
    written = f"{np.corrcoef(x, y)[0, 1]:+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    assert theorem.correlated(x, y, seeds.tolist()) == written


def test_generations_that_a_run_never_reached_count_as_wrong(tmp_path: Path) -> None:
    lost = ("none", RATES[1], 3)
    blocks = report.read(made(tmp_path, lost=lost))
    place = report.ARMS.index("none"), 1, 3
    assert (blocks.right[place][5:] == 0).all() and blocks.collapsed[place]
    assert blocks.area[place] == pytest.approx(areas(tmp_path)[lost])


def test_a_block_without_all_of_its_runs_is_left_out(tmp_path: Path) -> None:
    folder = made(tmp_path)
    answers = parquet.read_table(folder / "answers.parquet").to_pylist()
    kept = [r for r in answers if (r["arm"], r["rate"], r["seed"]) != ("clip", RATES[0], 7)]
    parquet.write_table(pa.Table.from_pylist(kept), folder / "answers.parquet")
    assert report.read(folder).seeds == list(range(7))
    only = [row for row in answers if row["arm"] == "atr"]
    parquet.write_table(pa.Table.from_pylist(only), folder / "answers.parquet")
    with pytest.raises(ValueError, match="no seed has a finished run of every arm"):
        report.read(folder)


def test_the_page_is_made_from_the_committed_tables() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert text == report.filled(text, report.page_parts(report.FOLDER)), "smollm2_report.py"


@needs("matplotlib")
def test_figure_and_readme_are_of_the_committed_tables(tmp_path: Path) -> None:
    from trustclip.report.draw.figures import save

    blocks = report.read(report.FOLDER)
    assert len(blocks.seeds) >= report.ENOUGH
    _, svg = save(report.curves(blocks), tmp_path)
    assert svg.read_bytes() == (report.FOLDER / svg.name).read_bytes(), "smollm2_report.py"
    for page, quoted in report.quotes(blocks, report.FOLDER).items():
        text = page.read_text(encoding="utf-8")
        assert "<!-- smollm2 -->" in text and text == report.quoted(page, quoted), page
    text = report.README.read_text(encoding="utf-8")
    assert "<!-- smollm2 -->" in text.partition("## Results\n")[2].partition("\n## ")[0]


def test_what_is_quoted_is_what_the_committed_tables_say() -> None:
    """From the rows alone, without a function of ours."""
    rows = parquet.read_table(report.FOLDER / "answers.parquet").to_pylist()
    share: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = row["arm"], row["rate"], row["seed"], row["update"] > 0
        share[key] = share.get(key, 0.0) + row["right"] / 512
    rates = sorted({row["rate"] for row in rows})

    def cell(arm: str, rate: float, end: bool = True) -> Any:
        return np.array([share[arm, rate, seed, end] for seed in range(6)])

    def written(d: Any) -> str:
        low, high = stats.ttest_1samp(d, 0).confidence_interval()
        return f"{100 * d.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")

    ends = {arm: np.mean([cell(arm, rate) for rate in rates], axis=0) for arm in report.ARMS}
    gap = ends["atr"] - ends["clip"]
    told = report.told(report.read(report.FOLDER))
    assert max(ends, key=lambda arm: ends[arm].mean()) == "clip" and (gap < 0).all()
    assert "the ordinary clip scored highest, and" in told["clip"]
    assert f"{written(gap)} points at the end, below 0 in 6 of 6 blocks" in told["clip"]
    for rate in rates:
        d = cell("none", rate) - cell("none", rate, end=False)
        assert written(d) in told["none"] and d.mean() < 0
    assert "nothing was learned" in told["none"] and "sign flips 2/64" in told["none"]


def test_what_remains_is_exactly_what_the_tables_lack(tmp_path: Path) -> None:
    import smollm2
    import yaml

    from trustclip.train.suite.plan import plan

    settings = yaml.safe_load(smollm2.SUITE.read_text(encoding="utf-8"))
    (short := tmp_path / "short.yaml").write_text(
        yaml.safe_dump(settings | {"seeds": [0, 1, 2], "recipe": "smollm2"})
    )
    whole = {job.name: job for job in plan(short).runs}

    def key(name: str) -> tuple[str, float, int]:
        job = whole[name]
        return job.label, job.settings["rl"]["learning_rate"], job.seed

    low, high = sorted({key(name)[1] for name in whole})
    left = {("none", low, 1), ("mirror", high, 1), ("none", high, 1)}
    there = [
        {"arm": arm, "rate": rate, "seed": seed, "right": 1}
        for arm, rate, seed in map(key, whole)
        if seed < 2 and (arm, rate, seed) not in left
    ]
    parquet.write_table(pa.Table.from_pylist(there), tmp_path / "answers.parquet")
    found = []
    for suite in smollm2.remaining(short, tmp_path):
        file = tmp_path / f"{suite['name']}.yaml"
        file.write_text(yaml.safe_dump(suite))
        found.append([job.name for job in plan(file).runs])
    assert [len(names) for names in found] == [1, 2, 8]  # the block that was begun goes first
    assert {key(name) for name in found[0] + found[1]} == left
    assert {key(name) for name in found[2]} == {k for k in map(key, whole) if k[2] == 2}
    everything = list(smollm2.remaining(smollm2.SUITE, tmp_path / "none"))
    assert len(everything) == 1 and everything[0]["seeds"] == list(range(16))
