"""Differences at equal score, over seeds and problems, and equivalence of independent runs."""

from typing import Any

import numpy as np
import pytest
from arena_scores import adjusted_runs, heterogeneity
from scipy import stats
from smallest_gap import gap_for

from trustclip.stats import RunSummary
from trustclip.stats.power import seeds_for
from trustclip_lab.stats.equivalence import equivalence_p

scipy_stats: Any = stats  # whose results are named tuples that no type checker knows


def test_the_intercept_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    beside = rng.normal(0.1, 0.05, 24)
    values = 0.02 - 0.5 * beside + rng.normal(0, 0.01, 24)
    found, line = adjusted_runs(values, beside), scipy_stats.linregress(beside, values)
    assert found.value == pytest.approx(line.intercept)
    half = scipy_stats.t.ppf(0.975, 22) * line.intercept_stderr
    assert (found.low, found.high) == pytest.approx((line.intercept - half, line.intercept + half))
    p = 2 * scipy_stats.t.sf(abs(line.intercept) / line.intercept_stderr, 22)
    assert found.p == pytest.approx(p)


def test_without_a_spread_of_what_is_held_equal_there_is_no_interval() -> None:
    found = adjusted_runs(np.array([0.1, 0.2, 0.3]), np.zeros(3))
    assert found.value == pytest.approx(0.2) and np.isnan([found.low, found.high, found.p]).all()


def test_cochrans_q_finds_settings_that_differ_as_often_as_it_says() -> None:
    """Six settings of 128 seeds with unlike spreads, without a difference: 5 % below 0.05."""
    rng, spreads = np.random.default_rng(5), np.array([0.2, 0.1, 0.03, 0.03, 0.02, 0.02])
    p_values = [
        heterogeneity([RunSummary.of(rng.normal(0.01, s, 128).tolist()) for s in spreads]).p
        for _ in range(1500)
    ]
    assert 0.035 < np.mean(np.array(p_values) < 0.05) < 0.075  # standard error 0.6 points
    apart = [RunSummary(0.05, 0.03, 128), RunSummary(-0.03, 0.1, 128)]
    by_hand = (0.05 + 0.03) ** 2 / (0.03**2 / 128 + 0.1**2 / 128)
    assert heterogeneity(apart).q == pytest.approx(by_hand)
    assert heterogeneity(apart).p == pytest.approx(scipy_stats.chi2.sf(by_hand, 1))
    assert np.isnan(heterogeneity([RunSummary(0.1, 0.0, 4), RunSummary(0.2, 0.1, 4)]).p)


def test_a_difference_that_never_varies_is_within_the_margin_or_beyond_it() -> None:
    flat = [equivalence_p(RunSummary(mean, 0.0, 4), 0.01) for mean in (-0.005, 0.01, -0.02)]
    assert flat == [0, 0.5, 1]


@pytest.mark.parametrize("paired", [True, False])
def test_the_gap_of_a_number_of_seeds_is_the_one_that_asks_for_them(paired: bool) -> None:
    for seeds in (2, 6, 16, 200):
        gap = gap_for(0.05, seeds, paired=paired, level=1 - 0.05 / 3)
        wanted = [
            seeds_for(0.05, gap * near, paired=paired, level=1 - 0.05 / 3)
            for near in (1.001, 0.999)
        ]
        assert wanted == [max(seeds, 3), seeds + 1]  # two find no gap
    with pytest.raises(ValueError, match="2 seeds or more; got 1"):
        gap_for(0.05, 1)
