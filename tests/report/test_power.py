"""``trustclip power``: seeds from a pilot, against simulation, by hand, and what is refused."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats as scipy_stats
from synthetic_runs import Spec, make_run

from trustclip.logs.reader import read_runs
from trustclip.report.planning import PilotComparison, print_power
from trustclip.stats.power import Spread, pooled, seeds_for, spread_of

ATR = Spec({"name": "atr", "delta": 0.07}, gain=1.5)
CLIP = Spec({"name": "clip", "epsilon": 0.2}, gain=1.0)


def pilot(folder: Path, seeds: dict[str, tuple[int, ...]]) -> list[Path]:
    specs = {"atr": ATR, "clip": CLIP}
    return [
        make_run(folder / f"{name}{seed}", replace(specs[name], seed=seed))
        for name, own in seeds.items()
        for seed in own
    ]


def printed(paths: list[Path], **settings) -> tuple[list[PilotComparison], str]:
    text = io.StringIO()
    given = {"gap": 3.0, "power": 0.8, "comparisons": None} | settings
    return print_power(paths, Console(width=120, file=text), **given), " ".join(
        text.getvalue().split()
    )


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("std", "gap", "level"), [(0.05, 0.05, 0.95), (0.03, 0.02, 0.99)])
def test_so_many_seeds_find_the_gap_as_often_as_asked(paired, std, gap, level) -> None:
    """And one seed fewer does not."""
    rng, tries = np.random.default_rng(1), 40_000
    seeds = int(seeds_for(std, gap, paired=paired, level=level))

    def found(n: int) -> float:
        if paired:
            p = scipy_stats.ttest_1samp(rng.normal(gap, std, (tries, n)), 0, axis=1)[1]
        else:
            a, b = rng.normal(gap, std, (tries, n)), rng.normal(0, std, (tries, n))
            p = scipy_stats.ttest_ind(a, b, axis=1)[1]
        return float(np.mean(p <= 1 - level))

    assert found(seeds) >= 0.8 - 0.008 and found(seeds - 1) < 0.8 + 0.008


def test_the_interval_of_a_pilots_answer_covers() -> None:
    """Of pilots with five seeds: the number that the true spread needs, in 95 % of them."""
    rng, true = np.random.default_rng(3), seeds_for(0.05, 0.04)
    inside = 0
    for _ in range(400):
        own = spread_of(rng.normal(0, 0.05, 5)).interval()
        inside += seeds_for(own.low, 0.04) <= true <= seeds_for(own.high, 0.04)
    assert 0.925 <= inside / 400 <= 0.98  # standard error 1.1 points


def test_two_spreads_of_runs_are_pooled_by_their_freedom() -> None:
    one = pooled([Spread(0.02, 2, False), Spread(0.05, 4, False)])
    assert one.std**2 == pytest.approx((2 * 0.02**2 + 4 * 0.05**2) / 6) and one.freedom == 6


def test_pairs_of_one_seed_and_their_spread_by_hand(tmp_path) -> None:
    paths = pilot(tmp_path, {"clip": (0, 1, 2), "atr": (0, 1, 2)})
    found, text = printed(paths)
    assert [(one.score, one.names, one.seeds) for one in found] == [
        (score, ("atr δ=0.07", "clip ε=0.2"), 3) for score in ("Mean@4", "area")
    ]
    ends = {r.path.name: r.final.scores["average"]["mean@4"]["value"]
            for r in read_runs(paths) if r.final}  # fmt: skip
    gaps = [ends[f"atr{seed}"] - ends[f"clip{seed}"] for seed in (0, 1, 2)]
    assert found[0].spread.std == pytest.approx(np.std(gaps, ddof=1))
    assert "3 pairs" in text and "So many seeds find 3 points with 80 % power" in text
    assert "A pilot of 3 says little about how much runs differ" in text
    assert seeds_for(0.0, 0.03) == 3  # two pairs show nothing


def test_other_seeds_or_one_method_are_planned_without_pairs(tmp_path) -> None:
    apart, text = printed(pilot(tmp_path / "a", {"clip": (0, 1, 2), "atr": (5, 6, 7)}))
    assert not apart[0].spread.paired and "6 runs" in text and "are independent" in text
    alone, text = printed(pilot(tmp_path / "b", {"atr": (0, 1, 2)}))
    assert not alone[0].spread.paired and "two like atr" in text


def test_what_has_no_spread_is_refused(tmp_path) -> None:
    one = pilot(tmp_path, {"clip": (0,), "atr": (0,)})
    with pytest.raises(ValueError, match=r"two seeds or more of a method.*atr δ=0.07: 1 evaluated"):
        printed(one)


@pytest.mark.parametrize(
    ("name", "value"), [("gap", 0.0), ("gap", 300.0), ("power", 1.0), ("comparisons", 0)]
)
def test_a_wrong_setting_is_refused_before_anything_is_read(name, value) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        printed([Path("nowhere")], **{name: value})
