"""The audit of the paper's tables: its arithmetic by brute force, its findings by hand."""

import re
from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from trustclip.stats import RunSummary, welch
from trustclip_lab.paper.audit import (
    Audit,
    audit,
    fit_difficulty,
    sampling_variance,
)
from trustclip_lab.paper.cells import (
    count_of,
    printed_rows,
    run_counts,
    single_run_faults,
    spreads_of,
)
from trustclip_lab.paper.power import dunnett_bound, power_of


@pytest.fixture(scope="module")
def found() -> Audit:
    return audit()


@pytest.mark.parametrize(
    ("percent", "answers", "count"),
    [(28.61, 664, 190), (6.67, 240, 16), (48.19, 83, 40), (13.33, 30, 4), (40.18, 664, None)],
)
def test_counts_behind_printed_percentages(percent, answers, count):
    assert count_of(percent, answers) == count


@pytest.mark.parametrize("ddof", [0, 1])
def test_run_counts_are_all_and_only_those_that_print_so(ddof):
    runs = [(a, b, c) for a, b, c in product(range(31), repeat=3) if a <= b <= c]
    for mine in [(8, 8, 8), (6, 7, 9), (0, 15, 30)]:
        shares = 100 * np.array(mine) / 30
        mean, std = round(shares.mean(), 2), round(shares.std(ddof=ddof), 2)
        expected = [
            run
            for run in runs
            if abs(100 * np.mean(run) / 30 - mean) <= 0.00501
            and abs(100 * np.std(run, ddof=ddof) / 30 - std) <= 0.00501
        ]
        assert list(mine) in run_counts(mean, std, 30, ddof).tolist()
        assert [tuple(run) for run in run_counts(mean, std, 30, ddof).tolist()] == expected


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("amc23_mean8_final", "41.75", "amc23 final .* not a whole number"),
        ("avg_mean8_final", "20.25", r"average mean8 is off by \+0.04"),
        ("aime24_pass8_final", "3.33", "24 right answers cannot solve 1 problems"),
        ("aime24_mean8_best", "9.58", "aime24 mean8: best 9.58 is below final 10.0"),
        ("avg_pass8_best", "45.00", "best average pass8 is above"),
    ],
)
def test_faults_are_found(column, value, message):
    row = next(row for row in printed_rows("paper_table2.csv") if row["method"] == "Clip")
    assert not single_run_faults(row)
    faults = "\n".join(single_run_faults({**row, column: value}))
    assert faults.startswith("Qwen3-1.7B Clip: ")
    assert re.search(message, faults)


def test_a_sample_std_would_be_recognised():
    row = {"method": "x"}
    counts = {"amc23": (1, 2, 4), "aime24": (26, 32, 36), "aime25": (29, 33, 39)}
    for benchmark, runs in counts.items():
        shares = 100 * np.array(runs) / (664 if benchmark == "amc23" else 240)
        row[f"{benchmark}_mean8_mean"] = f"{shares.mean():.2f}"
        row[f"{benchmark}_mean8_std"] = f"{shares.std(ddof=1):.2f}"
    cells = spreads_of(row, "mean8")
    assert [(len(cell.population), len(cell.sample)) for cell in cells] == [(0, 1)] * 3


@pytest.mark.slow
def test_claims_are_welchs_tests_with_the_corrected_std(found):
    assert len(found.claims) == 22
    claim = next(c for c in found.claims if c.baseline == "Clip (ε = 0.2)" and c.metric == "mean8")
    correction = np.sqrt(3 / 2)
    theirs = scipy_stats.ttest_ind_from_stats(
        23.42, 1.04 * correction, 3, 19.75, 0.10 * correction, 3, equal_var=False
    )
    assert claim.difference.p == pytest.approx(theirs.pvalue)
    assert claim.difference.value == pytest.approx(3.67)


@pytest.mark.slow
def test_dunnetts_test_is_that_of_the_pooled_variance(found):
    """By the double integral over the control's error and the pooled standard deviation."""
    correction = np.sqrt(3 / 2)
    rows = printed_rows("paper_table3.csv")
    stds = np.array([float(row["avg_mean8_std"]) for row in rows]) * correction
    pooled, freedom = np.sqrt((stds**2).mean()), 2 * len(rows)
    claim = next(c for c in found.claims if c.metric == "mean8" and c.baseline.startswith("KL1"))
    t = claim.difference.value / (pooled * np.sqrt(2 / 3))
    z = np.linspace(-8, 8, 801)
    s = np.sqrt(scipy_stats.chi2.ppf((np.arange(400) + 0.5) / 400, freedom) / freedom)
    reach = np.sqrt(2) * t * s[:, None]
    inside = (scipy_stats.norm.cdf(z + reach) - scipy_stats.norm.cdf(z - reach)) ** (len(rows) - 1)
    p = 1 - (inside * scipy_stats.norm.pdf(z)).sum(axis=1).mean() * (z[1] - z[0])
    assert claim.p_dunnett == pytest.approx(p, abs=5e-4)


@pytest.mark.parametrize("metric", ["mean8", "pass8"])
def test_sampling_variance_by_simulation(metric):
    rng = np.random.default_rng(0)
    row = next(row for row in printed_rows("paper_table2.csv") if "ATR" in row["method"])
    variance = 0.0
    for benchmark, problems in {"amc23": 83, "aime24": 30, "aime25": 30}.items():
        a, b = fit_difficulty(
            *(float(row[f"{benchmark}_{m}_final"]) / 100 for m in ("mean8", "pass8"))
        )
        chances = rng.beta(a, b, 20_000)
        right = rng.binomial(8, chances, (50, 20_000))
        score = right / 8 if metric == "mean8" else right > 0
        variance += 1e4 * score.var(axis=0, ddof=1).mean() / problems / 9
    assert sampling_variance(row, metric) == pytest.approx(variance, rel=0.03)


def test_power_is_that_of_the_tests_themselves():
    """Dunnett's bound against scipy's own test, and both powers by drawing whole experiments."""
    rng = np.random.default_rng(1)
    bound = dunnett_bound(11, 24, 0.95)
    runs = rng.normal(size=(12, 3))
    spread = np.sqrt(runs.var(axis=1, ddof=1).mean() * 2 / 3)
    runs[0] += runs[1].mean() - runs[0].mean() + bound * spread  # exactly at the bound
    p = scipy_stats.dunnett(*runs[1:], control=runs[0], rng=np.random.default_rng(0)).pvalue
    assert p[0] == pytest.approx(0.05, abs=0.004)
    summaries = [RunSummary(20.0, 1.0, 3)] * 12
    found = power_of("mean8", summaries)
    drawn = rng.normal(size=(400, 2, 3)) + np.array([[3.0], [0.0]])
    share = np.mean([welch(RunSummary.of(a), RunSummary.of(b)).p <= 0.05 / 11 for a, b in drawn])
    assert found.welch[found.gaps.index(3.0)] == pytest.approx(share, abs=0.06)
    assert sorted(found.dunnett) == list(found.dunnett) and found.dunnett[-1] > found.welch[-1]
