"""The experiment over width and rate: its runs, and a report that cannot be read too early."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

parquet = pytest.importorskip("pyarrow.parquet")
import pyarrow as pa  # noqa: E402
import smollm2_width as runs  # noqa: E402
import smollm2_width_report as report  # noqa: E402
import yaml  # noqa: E402

import trustclip as tc  # noqa: E402
from trustclip.logs.writing.environment import processor  # noqa: E402

KIND = "A kind (family 1)"
Cell = tuple[str, float]


def made(
    folder: Path, a: float = 0.77, gap: float = 0.0, kinds: dict[int, str] | None = None
) -> Path:
    """Tables of ten blocks with a known exchange rate, difference of shapes and movement."""
    area = report.simulated(a, gap, np.random.default_rng(3))
    generations: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for i, (arm, rate) in enumerate(report.CELLS):
        for j, seed in enumerate(report.SEEDS):
            kind = (kinds or {}).get(seed, KIND)
            run = {"arm": arm, "rate": rate, "seed": seed, "processor": kind, "commit": "c"}
            k3 = 0.01 + max(0.0, 0.49 - area[:, j].mean() - (area[i, j] - area[:, j].mean()))
            generations += [
                {**run, "generation": n, "right": 64 * area[i, j], "k3": k3, "gated": 0.02}
                for n in range(1, 17)
            ]
            right = int(128 * area[i, j])
            answers += [
                {**run, "update": update, "problem": str(n), "samples": 4,
                 "right": 4 * (n < (right if update else 50))}
                for update in (0, 256) for n in range(128)
            ]  # fmt: skip
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(generations), folder / "generations.parquet")
    parquet.write_table(pa.Table.from_pylist(answers), folder / "answers.parquet")
    return folder


def changed(folder: Path, change: Any) -> Path:
    """The tables with each row put through a function; rows for which it returns None are gone."""
    for path in folder.glob("*.parquet"):
        rows = [change(dict(row)) for row in parquet.read_table(path).to_pylist()]
        parquet.write_table(pa.Table.from_pylist([row for row in rows if row]), path)
    return folder


def words(folder: Path) -> dict[str, str]:
    blocks = report.read(folder)
    both = report.primary(blocks.area, 2000) | report.secondary(blocks)
    return {name: one.word for name, one in both.items()}


# -- the report ------------------------------------------------------------------------------------


def test_nothing_is_tabulated_before_the_last_run_of_the_last_block(tmp_path: Path) -> None:
    folder = made(tmp_path)
    last = ("held", report.RATES[-1], report.SEEDS[-1])
    changed(folder, lambda r: None if (r["arm"], r["rate"], r["seed"]) == last else r)
    with pytest.raises(report.UnfinishedError, match="9 of the 10 planned blocks"):
        report.read(folder)
    parts = report.page_parts(folder)
    assert parts["blocks"].startswith("**9 of the 10 planned blocks are finished** (135 runs).")
    assert "Nothing is tabulated or concluded" in parts["blocks"]
    silent = ("advice", "verdicts", "surface", "exchange", "cells", "movement", "secondary")
    assert all(parts[name] == "Nothing yet: not all blocks are finished." for name in silent)
    none = report.page_parts(tmp_path / "none")
    assert none.keys() == parts.keys() and none["blocks"].startswith("**0 of the 10")


@pytest.mark.slow
def test_a_known_exchange_rate_and_known_differences_are_found(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path, a=0.77))
    tested, fit = report.exchange(blocks.area[:9])
    assert tested.low < 0.77 < tested.high and abs(tested.value - 0.77) < 0.3
    assert fit.slope == pytest.approx(report.SLOPE, rel=0.5)
    found = words(tmp_path)
    assert found["H1"] == found["H4"] == "confirmed"
    assert found["H2"] == found["H3"] == "equivalent"
    assert found["S1"] == "confirmed"
    spans = [
        np.ptp([blocks.of("area", arm, rate) for rate in report.RATES], axis=0)
        for arm in ("clip-0.2", "held")
    ]
    sensitive = report.secondary(blocks)["S3"].tested
    assert sensitive.value == pytest.approx((spans[0] - spans[1]).mean()) and sensitive.value > 0
    parts = report.page_parts(tmp_path)
    assert parts["advice"].startswith("Width and rate") and "a high learning" in parts["advice"]
    assert parts["cells"].count("| `") == 15 and "39.1" in parts["cells"].splitlines()[0]


@pytest.mark.slow
def test_other_tables_have_other_verdicts(tmp_path: Path) -> None:
    swap = {"clip-0.1": "clip-0.4", "clip-0.4": "clip-0.1"}
    folder = changed(
        made(tmp_path / "swapped"), lambda r: r | {"arm": swap.get(r["arm"], r["arm"])}
    )
    assert words(folder)["H1"] == "refuted"
    # `atr` is far below both shapes, and its end far below that of the clip.
    folder = made(tmp_path / "shapes", gap=-0.15)
    found = words(folder)
    assert found["H2"] == found["H3"] == found["S2"] == "confirmed"
    assert "`atr` is below" in report.page_parts(folder)["verdicts"]
    exchange = {"held": "clip-0.2", "clip-0.2": "held"}

    def exchanged(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"arm": exchange.get(row["arm"], row["arm"])}

    assert words(changed(made(tmp_path / "held"), exchanged))["H4"] == "refuted"


def test_every_verdict_follows_from_the_corrected_p_alone() -> None:
    given = [(0.1, 1, 0.01, 0.9), (-0.1, 1, 0.01, 0.9), (-0.1, 0, 0.01, 0.9),
             (0.01, 1, 0.01, 0.04), (0.1, 1, 0.06, 0.9), (-0.6, -1, 0.01, math.nan)]  # fmt: skip
    words = ["confirmed", "refuted", "confirmed", "equivalent", "open", "confirmed"]
    assert [report._word(*one) for one in given] == words


def test_the_fit_is_the_least_squares_fit() -> None:
    for a in (-0.4, 0.0, 0.62, 1.3):
        u = np.array([math.log(r) + a * math.log(w) for w in report.WIDTHS for r in report.RATES])
        bend = u.min() + 0.4 * (u.max() - u.min())
        fit = report.fitted(0.5 - 0.07 * np.maximum(0, u - bend))
        assert fit.a == pytest.approx(a, abs=0.011)
        assert (fit.slope, fit.bend) == pytest.approx((0.07, bend), rel=0.02)
    assert np.isnan(report.fitted(np.full(9, 0.5)).a), "nothing falls"


def test_contrasts_are_paired_t_tests_with_holms_correction_over_four(tmp_path: Path) -> None:
    blocks = report.read(made(tmp_path, gap=0.04))
    family = report.primary(blocks.area, 2000)
    raw = {}
    for name, ours, theirs in (
        ("H2", ("atr", 2.77e-4), ("mirrored", 2.77e-4)),
        ("H3", ("atr", 2.77e-4), ("symmetric", 2.77e-4)),
        ("H4", ("held", 4.8e-4), ("clip-0.2", 4.8e-4)),
    ):
        gap = blocks.of("area", *ours) - blocks.of("area", *theirs)
        test: Any = stats.ttest_1samp(gap, 0)
        one = family[name].tested
        assert (one.value, one.p) == pytest.approx((gap.mean(), test.pvalue))
        assert (one.low, one.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
        above: Any = stats.ttest_1samp(gap, 0.05, alternative="less")
        below: Any = stats.ttest_1samp(gap, -0.05, alternative="greater")
        assert one.p_equivalent == pytest.approx(max(above.pvalue, below.pvalue))
        raw[name] = test.pvalue
    raw["H1"] = family["H1"].tested.p
    before = 0.0
    for times, name in zip((4, 3, 2, 1), sorted(raw, key=lambda n: raw[n]), strict=True):
        before = max(before, min(1.0, times * raw[name]))
        assert family[name].p == pytest.approx(before)


def test_a_block_is_of_the_kind_of_processor_that_has_all_of_its_runs(tmp_path: Path) -> None:
    folder = made(tmp_path)
    area = report.read(folder).area
    for name in ("generations", "answers"):
        path = folder / f"{name}.parquet"
        rows = parquet.read_table(path).to_pylist()
        more = [
            row | {"processor": "B kind (family 2)", "right": 0}
            for row in rows
            if row["seed"] == 8 and row["arm"] != "held"
        ]
        parquet.write_table(pa.Table.from_pylist(rows + more), path)
    assert report.finished(folder) == dict.fromkeys(report.SEEDS, KIND)
    assert (report.read(folder).area == area).all()
    assert "(150 runs). The tables also hold runs" in report.state_of(folder)


def test_the_page_is_made_from_the_committed_tables() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    parts = report.page_parts(report.FOLDER)
    assert all(f"<!-- {name} -->" in text for name in parts)
    assert text == report.filled(text, parts), "smollm2_width_report.py"


def test_figures_and_quotes_are_of_the_committed_tables(tmp_path: Path) -> None:
    from trustclip.report.draw.figures import save

    blocks = report.read(report.FOLDER)
    surface, movement = report.figures(blocks)
    assert len(surface.panels) == 4 and sum(len(m.x) for m in movement.panels[0].marks) == 150
    for figure in (surface, movement):
        svg = save(figure, tmp_path)[1]
        assert svg.read_bytes() == (report.FOLDER / svg.name).read_bytes()
    for page, text in report.quotes(blocks).items():
        old = page.read_text(encoding="utf-8")
        assert "<!-- width -->" in old and old == report.quoted(page, text, "width"), page


# -- the runs --------------------------------------------------------------------------------------


def test_a_block_is_the_fifteen_runs_of_the_plan(tmp_path: Path) -> None:
    from trustclip.train.suite.plan import plan

    file = tmp_path / "suite.yaml"
    suite = runs.suite("grid", tmp_path, runs.SEEDS, runs.arms(0.03))
    file.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    jobs = plan(file).runs
    assert len(jobs) == 150 and [job.seed for job in jobs[:15]] == [8] * 15
    cells = [(j.label.partition("_")[0], j.settings["rl"]["learning_rate"]) for j in jobs[:15]]
    assert tuple(cells) == report.CELLS and cells[-1] == ("held", 4.8e-4)
    for job in jobs[:15]:
        assert job.settings["rl"]["trl"] == {"share_prompts": True, "whole_groups": True}
        assert job.settings["rl"]["max_steps"] == 256 and job.settings["eval"]["every"] == 0
    methods = {job.label.partition("_")[0]: job.method for job in jobs[:15]}
    low, high = map(float, tc.interval("atr", delta=0.07))
    mirrored, symmetric = methods["mirrored"], methods["symmetric"]
    assert mirrored is not None and symmetric is not None
    assert tc.interval(mirrored) == pytest.approx((1 / high, 1 / low))
    below, above = map(float, tc.interval(symmetric))
    assert below * above == pytest.approx(1) and above / below == pytest.approx(high / low)


def test_what_the_tables_lack_is_run_and_no_block_on_two_kinds_of_processor(tmp_path: Path) -> None:
    fixed = runs.arms(None)
    assert [seed for seed, _ in runs.blocks(tmp_path, tmp_path, fixed)] == list(runs.SEEDS)
    kinds = dict.fromkeys(report.SEEDS, processor()) | {9: KIND}
    made(tmp_path, kinds=kinds)
    assert list(runs.blocks(tmp_path, tmp_path, runs.arms(0.03))) == []
    left = {("held", 1.6e-4, 8), ("atr", 2.77e-4, 9), ("clip-0.1", 4.8e-4, 17)}
    changed(tmp_path, lambda r: None if (r["arm"], r["rate"], r["seed"]) in left else r)
    (tmp_path / "block-8/clip-0.2_0.000277-seed8-0a").mkdir(parents=True)
    found = {
        seed: {(arm, rate) for arm, (_, rates) in own.items() for rate in rates}
        for seed, own in runs.blocks(tmp_path, tmp_path, runs.arms(0.03))
    }
    assert list(found) == [8, 17, 9], "begun elsewhere comes last, and is made whole"
    assert found[8] == {("held", 1.6e-4), ("clip-0.2", 2.77e-4)}, "a folder here is kept in view"
    assert found[17] == {("clip-0.1", 4.8e-4)} and found[9] == set(report.CELLS)
    assert [seed for seed, _ in runs.blocks(tmp_path, tmp_path, fixed)] == [17, 9]


def calibration(folder: Path, k3: dict[float, tuple[float, ...]]) -> Path:
    rows = [
        {"arm": f"held-{gain}", "rate": rate, "seed": seed, "generation": n,
         "k3": value if n >= 4 else 9.0}
        for gain, values in k3.items() for rate, value in zip(runs.RATES, values, strict=False)
        for seed in runs.CALIBRATION for n in range(1, 17)
    ]  # fmt: skip
    (folder / "calibration").mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "calibration/generations.parquet")
    return folder


def test_the_controllers_setting_is_the_first_that_holds(tmp_path: Path) -> None:
    assert runs.chosen(tmp_path) is None
    assert runs.chosen(calibration(tmp_path, {0.03: (0.015, 0.015)})) is None, "a rate is missing"
    assert runs.chosen(calibration(tmp_path, {0.03: (0.011, 0.015, 0.022)})) == 0.03
    miss = {0.03: (0.015, 0.015, 0.024)}
    assert runs.chosen(calibration(tmp_path, miss)) is None
    assert runs.chosen(calibration(tmp_path, miss | {0.01: (0.015, 0.02, 0.016)})) == 0.01
    none = miss | {0.01: (0.015, 0.03, 0.016), 0.1: (0.015, 0.05, 0.016)}
    assert runs.chosen(calibration(tmp_path, none)) == 0.03
    assert report.calibrated(tmp_path).endswith("G = 0.03 is taken.")


def test_the_setting_in_use_is_that_of_the_committed_calibration() -> None:
    assert runs.HELD in (None, runs.chosen(runs.FOLDER))
