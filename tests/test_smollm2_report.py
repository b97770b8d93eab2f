"""The report of the runs with SmolLM2: its numbers made anew, and what is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402
import smollm2_report as report  # noqa: E402

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
                            "k3": 0.001,
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


def test_what_is_said_follows_from_tests_end_and_rates(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    said = report.said(blocks)
    assert said["none"] == "confirmed"
    assert said["clip"].startswith("confirmed; tuning"), "it is behind at one rate alone"
    assert said["mirror"].startswith(("refuted (equivalent)", "open"))
    higher = [
        np.diff([areas(tmp_path)["atr", r, s] - areas(tmp_path)["clip", r, s] for r in RATES])[0]
        for s in SEEDS
    ]
    assert report.interactions(blocks)["clip"].difference.value == pytest.approx(np.mean(higher))


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


def test_entropy_is_read_off_where_half_of_the_answers_are_right(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    right, entropy = blocks.right[0, 0, 0], blocks.entropy[0, 0, 0]
    found = blocks.entropy_at_equal_score[0, 0, 0]
    i = next(n for n in range(15) if right[n] < 0.5 <= right[n + 1])
    assert min(entropy[i], entropy[i + 1]) <= found <= max(entropy[i], entropy[i + 1])
    assert np.interp(0.5, right[i : i + 2], entropy[i : i + 2]) == pytest.approx(found)


def test_tables_are_written_into_their_places(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path))
    page = "A\n<!-- blocks -->old<!-- /blocks -->\nB\n"
    assert "8 blocks, 64 runs." in report.filled(page, report.tables(blocks))
    assert report.tables(blocks)["contrasts"].count("`atr` −") == 3
