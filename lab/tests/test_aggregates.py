"""Intervals of tables of seeds and problems, beside those of independent cells."""

from typing import Any

import numpy as np
from arena_scores import crossed_interval
from scipy import stats

scipy_stats: Any = stats  # whose results are named tuples that no type checker knows


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
