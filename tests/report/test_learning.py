"""Learning curves of many runs: area, time to a score; and the table that a report is made from."""

from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import Spec, make_suite

from trustclip import stats
from trustclip.findings.groups import group_runs
from trustclip.findings.learning import Learning, area_of, learning, tallies, threshold, time_of
from trustclip.logs.reader import read_runs
from trustclip.report.collect import collect
from trustclip.report.page import build
from trustclip.stats import curves

ATR = {"name": "atr", "delta": 0.07}
CLIP = {"name": "clip", "epsilon": 0.2}
NONE = {"name": "clip_higher", "low": 1.0, "high": 1e9}
SPECS = {
    "clip": Spec(CLIP, gain=0.1),
    "atr": Spec(ATR, gain=3.0),
    "none": Spec(NONE, gain=3.0, loss=4.0),
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    folder = make_suite(
        tmp_path_factory.mktemp("learning") / "made-up", SPECS, seeds=(0, 1, 2), reference="atr"
    )
    path = folder / "suite.yaml"
    path.write_text(path.read_text() + "reaches: 0.45\n")
    return folder


@pytest.fixture(scope="module")
def built(suite, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("built")
    build([suite], out)
    return out


def scores_of(run) -> tuple[list[int], list[float]]:
    found = [(e.step, e.scores["average"]["mean@4"]["value"]) for e in run.evaluations]
    return [step for step, _ in found], [score for _, score in found]


# Formulas


def test_the_area_is_that_of_the_trapezoidal_rule_at_irregular_updates():
    rng = np.random.default_rng(0)
    for _ in range(20):
        at = np.cumsum(rng.integers(1, 40, 6))
        scores = rng.random(6)
        mean = np.trapezoid(scores, at) / (at[-1] - at[0])
        assert curves.area(at.tolist(), scores) == pytest.approx(mean, abs=1e-12)
    with pytest.raises(ValueError, match="two evaluations or more"):
        curves.area([8], [0.5])
    with pytest.raises(ValueError, match="rising"):
        curves.area([0, 8, 8], [0.5, 0.5, 0.5])


def test_counted_answers_have_the_area_of_every_problem_and_seed():
    rng = np.random.default_rng(1)
    at, totals = [0, 5, 20, 21], (4, 4, 6, 8)
    counts = [stats.Tally(rng.integers(0, k + 1, (2, 5)), np.full((2, 5), k)) for k in totals]
    found = curves.area_tally(at, counts)
    shares = np.stack([c.right / c.total for c in counts])
    expected = np.trapezoid(shares, at, axis=0) / 21
    assert np.allclose(found.right / found.total, expected, atol=1e-14)


def test_a_time_that_never_came_counts_to_the_end():
    assert curves.reached([0, 16, 32], [0.2, 0.9, 0.3], 0.9) == 16
    assert isnan(curves.reached([0, 16], [0.2, 0.8], 0.9))
    assert curves.restricted([16, nan], [96, 64]).tolist() == [16, 64]


# Groups


def test_areas_and_times_of_groups_are_those_of_their_runs(suite):
    groups = group_runs(read_runs([suite]))
    found: Any = dict(zip([g.label for g in groups], learning(groups, 0.45), strict=True))
    for group in groups:
        one = found[group.label]
        assert isinstance(one, Learning) and one.area is not None and one.time is not None
        areas, times = [], []
        for run in group.runs:
            at, scores = scores_of(run)
            areas.append(np.trapezoid(scores, at) / 60)
            times.append(next((t for t, s in zip(at, scores, strict=True) if s >= 0.45), None))
            assert area_of(run) == pytest.approx(areas[-1])
            assert time_of(run, 0.45) == times[-1] or (times[-1] is None)
        assert one.area.value == pytest.approx(np.mean(areas))
        assert one.time.value == pytest.approx(np.mean([60 if t is None else t for t in times]))
        hits = sum(t is not None for t in times)
        assert one.reached == stats.rate_interval(hits, 3)
    assert found["atr"].area_minus is None and found["none"].collapsed.value > 0
    assert found["atr"].reached.value > found["clip"].reached.value


def test_differences_of_areas_are_paired_and_corrected(suite):
    groups = group_runs(read_runs([suite]))
    found: Any = dict(zip([g.label for g in groups], learning(groups, 0.45), strict=True))
    gaps = [found[label].area_minus for label in ("clip", "none")]
    atr = found["atr"].area.value
    for label, gap in zip(("clip", "none"), gaps, strict=True):
        assert gap.value == pytest.approx(found[label].area.value - atr)
        assert gap.low < gap.value < gap.high
    runs = {group.label: group.runs for group in groups}
    answers, strata = tallies([run for label in SPECS for run in runs[label]])
    assert answers is not None
    thirds: Any = zip(np.split(answers.right, 3), np.split(answers.total, 3), strict=True)
    clip, base, none = (stats.Tally(*third) for third in thirds)
    own = [stats.paired_difference(one, base, strata, same_seeds=True).p for one in (clip, none)]
    assert [gap.p for gap in gaps] == stats.holm(own).tolist()
    # Three seeds alone cannot be further from chance than their signs.
    assert all(found[label].time_minus.p >= 0.25 for label in ("clip", "none"))


def test_the_threshold_is_the_one_given_or_the_suites(suite):
    groups = group_runs(read_runs([suite]))
    assert (threshold(groups), threshold(groups, 0.3)) == (0.45, 0.3)
    assert "to 45 % updates" in collect([suite])["training"].tables[0].columns
    assert "to 30 % updates" in collect([suite], reaches=0.3)["training"].tables[0].columns
    with pytest.raises(ValueError, match=r"in \(0, 1\], e.g. 0.9; got 90"):
        collect([suite], reaches=90)
