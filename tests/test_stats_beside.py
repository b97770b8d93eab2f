"""Differences at equal score, over seeds and problems, and equivalence of independent runs."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from trustclip.stats import RunSummary
from trustclip.stats.aggregates import crossed_interval
from trustclip.stats.equivalence import adjusted_runs, equivalence_p, welch_equivalence_p

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


def test_both_rows_and_columns_are_resampled() -> None:
    """What the problems of a seed share, and the seeds of a problem, is no noise of cells."""
    rng = np.random.default_rng(1)
    covered, alone = 0, 0
    for _ in range(200):
        seeds, problems = rng.normal(0, 1, (20, 1)), rng.normal(0, 1, (1, 30))
        table = seeds + problems + rng.normal(0, 1, (20, 30))
        found = crossed_interval(table, resamples=400)
        covered += found.low <= 0 <= found.high
        half = scipy_stats.t.ppf(0.975, 599) * table.std(ddof=1) / np.sqrt(600)
        alone += abs(table.mean()) <= half
    assert 0.88 <= covered / 200 <= 0.99  # standard error 1.5 points
    assert alone / 200 < 0.7


def test_equivalence_of_independent_runs_is_welchs() -> None:
    rng = np.random.default_rng(2)
    ours, theirs = rng.normal(0.5, 0.01, 12), rng.normal(0.5, 0.03, 9)
    first, second = (RunSummary.of(values.tolist()) for values in (ours, theirs))
    expected = max(
        scipy_stats.ttest_ind(ours + 0.03, theirs, equal_var=False, alternative="greater").pvalue,
        scipy_stats.ttest_ind(ours - 0.03, theirs, equal_var=False, alternative="less").pvalue,
    )
    assert welch_equivalence_p(first, second, 0.03) == pytest.approx(expected)
    with pytest.raises(ValueError, match="above 0"):
        welch_equivalence_p(first, second, 0.0)
    with pytest.raises(ValueError, match="above 0"):
        equivalence_p(first, 0.0)
    same = RunSummary(0.5, 0.0, 3)
    assert np.isnan(welch_equivalence_p(same, same, 0.01))
