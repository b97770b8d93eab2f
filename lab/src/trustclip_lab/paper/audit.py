"""Audit of the ATR-GRPO paper's printed tables: which claims they can and cannot support.

The tables are those of Wu et al., "A Unified Framework for Rethinking Policy Divergence Measures
in GRPO": Table 2 (two models, one run a method) and Table 3 (Qwen3-1.7B, three runs a method).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
from scipy.special import betaln, chdtrc, ndtri

from trustclip.stats import Difference, RunSummary, holm, welch
from trustclip_lab.paper.cells import (
    BENCHMARKS,
    METRICS,
    RUNS,
    SAMPLES,
    Average,
    Row,
    Spread,
    average_of,
    count_of,
    printed_rows,
    single_run_faults,
    spreads_of,
)
from trustclip_lab.paper.context import Context, context
from trustclip_lab.paper.power import Power, power_of

LEVEL = 0.95
BASE = "Base Model"
ATR = "ATR-based Clipping"
ATR_REPEATED = "KL3 (δ = 0.07, ratio in [0.671, 1.422])"
REPEATED = {
    "Clip": "Clip (ε = 0.2)",
    "Clip-Higher": "Clip-Higher (ε_l = 0.2, ε_u = 0.28)",
    ATR: ATR_REPEATED,
}
REPEATED_MODEL = "Qwen3-1.7B"


@dataclass(frozen=True)
class Conventions:
    """Counts of cells that fit a population std (divisor 3), a sample one, both or neither."""

    population: int
    sample: int
    both: int
    neither: int

    @classmethod
    def of(cls, fits: Sequence[tuple[bool, bool]]) -> "Conventions":
        """Counts of (fits population, fits sample)."""
        return cls(*(fits.count(pair) for pair in _FIT_PAIRS))


_FIT_PAIRS = [(True, False), (False, True), (True, True), (False, False)]


@dataclass(frozen=True)
class Claim:
    """ATR against one baseline, three runs each, in points, tested in two ways.

    Welch's test with Holm's correction lets every method have its own variance, estimated
    from three runs, and has little power. Dunnett's test gives all methods one variance,
    estimated from all 36 runs, and corrects for the family of baselines by itself; it is wrong
    where the variances differ.

    Args:
      metric: ``"mean8"`` or ``"pass8"``.
      baseline: the row.
      difference: by Welch's test, with its own p.
      without_amc: the gap of the means of AIME 2024 and 2025 alone.
      p_holm: of Welch's test, corrected.
      p_dunnett: of Dunnett's test.
    """

    metric: str
    baseline: str
    difference: Difference
    without_amc: float
    p_holm: float
    p_dunnett: float

    @property
    def survives(self) -> bool:
        """Whether the gap is significant by Welch's test after Holm's correction."""
        return self.difference.value > 0 and self.p_holm <= 1 - LEVEL

    @property
    def survives_pooled(self) -> bool:
        """Whether the gap is significant by Dunnett's test, so under equal variances."""
        return self.difference.value > 0 and self.p_dunnett <= 1 - LEVEL


@dataclass(frozen=True)
class Spreads:
    """Spread of the runs of Table 3 over all its rows, in the Average of one metric.

    Args:
      metric: ``"mean8"`` or ``"pass8"``.
      p_equal: of Bartlett's test that all methods have the same variance.
      ratio: mean variance of the runs over that of sampling 8 answers alone.
      p_sampling: of the chi-squared test that sampling alone makes the variances as large.
    """

    metric: str
    p_equal: float
    ratio: float
    p_sampling: float


@dataclass(frozen=True)
class Gap:
    """ATR against the best baseline, one run each, in points.

    `margin` is the 95 % margin of such a gap from sampling 8 answers alone, with the problems and
    both training runs held fixed: the least that a claim must exceed.
    """

    model: str
    metric: str
    baseline: str
    value: float
    margin: float

    @property
    def resolved(self) -> bool:
        return self.value > self.margin


@dataclass(frozen=True)
class Audit:
    """Result of the audit of the two tables.

    Args:
      rows: number of rows of Table 2.
      cells: number of its benchmark scores, final and best.
      faults: every inconsistency of Table 2, in words.
      spreads: benchmark cells of Table 3, each with the runs that print as it.
      conventions: which std fits those cells.
      averages: Average cells of Table 3, each with the nearest std its runs can have.
      reruns: method to (cells of its Table 2 run that one of its Table 3 runs has, cells).
      claims: ATR against each other row of Table 3, on the Average of each metric.
      other_claims: the same, had the printed stds the other divisor.
      power: of both tests of the claims, one for each metric.
      variances: of the runs of Table 3, one for each metric.
      gaps: ATR against the best baseline of Table 2, on the Average, by model and metric.
      context: what the tables do not say.
    """

    rows: int
    cells: int
    faults: list[str]
    spreads: list[Spread]
    conventions: Conventions
    averages: list[Average]
    reruns: dict[str, tuple[int, int]]
    claims: list[Claim]
    other_claims: list[Claim]
    power: list[Power]
    variances: list[Spreads]
    gaps: list[Gap]
    context: Context

    def as_json(self) -> dict[str, Any]:
        """The audit in plain values, for ``trustclip paper --json``."""
        plain = asdict(self)
        for cell in plain["spreads"]:
            cell |= {key: cell[key].tolist() for key in ("population", "sample")}
        for average in plain["averages"]:
            for key in ("population", "sample"):
                average[key] = None if average[key] == inf else average[key]
        return plain

    @property
    def impossible(self) -> list[Spread]:
        """Cells of Table 3 that no three runs can produce."""
        return [spread for spread in self.spreads if not spread.possible]


def audit() -> Audit:
    """Audit the printed numbers of Tables 2 and 3; all of it is computed from the shipped tables.

    Example:
      >>> result = audit()
      >>> [(cell.method, cell.mean, cell.repair) for cell in result.impossible]
      [('Clip (ε = 0.329)', 40.18, 40.16)]
      >>> [claim.baseline for claim in result.claims if claim.survives]
      []
      >>> sum(claim.survives_pooled for claim in result.claims)
      11
    """
    single, repeated = printed_rows("paper_table2.csv"), printed_rows("paper_table3.csv")
    cells = [(row, spreads_of(row, metric)) for row in repeated for metric in METRICS]
    spreads = [spread for _, of_row in cells for spread in of_row]
    conventions = Conventions.of([(len(s.population) > 0, len(s.sample) > 0) for s in spreads])
    population = conventions.population >= conventions.sample
    return Audit(
        rows=len(single),
        cells=sum(
            bool(row[f"{benchmark}_{metric}_{at}"])
            for row in single
            for benchmark in BENCHMARKS
            for metric in METRICS
            for at in ("final", "best")
        ),
        faults=[fault for row in single for fault in single_run_faults(row)],
        spreads=spreads,
        conventions=conventions,
        averages=[average_of(row, of_row) for row, of_row in cells],
        reruns={method: _rerun(method, single, spreads) for method in REPEATED},
        claims=[claim for metric in METRICS for claim in _claims(metric, repeated, population)],
        other_claims=[c for metric in METRICS for c in _claims(metric, repeated, not population)],
        power=[
            power_of(metric, [*_summaries(metric, repeated, population).values()])
            for metric in METRICS
        ],
        variances=[_variances(metric, repeated, population) for metric in METRICS],
        gaps=[
            _gap(metric, [row for row in single if row["model"] == model])
            for model in dict.fromkeys(row["model"] for row in single)
            for metric in METRICS
        ],
        context=context(),
    )


def _rerun(method: str, single: Sequence[Row], spreads: Sequence[Spread]) -> tuple[int, int]:
    (row,) = (r for r in single if (r["model"], r["method"]) == (REPEATED_MODEL, method))
    cells = [spread for spread in spreads if spread.method == REPEATED[method]]
    hits = sum(
        count_of(float(row[f"{cell.benchmark}_{cell.metric}_final"]), cell.answers) in cell.runs
        for cell in cells
    )
    return hits, len(cells)


def _summaries(metric: str, repeated: Sequence[Row], population: bool) -> dict[str, RunSummary]:
    make = RunSummary.from_population_std if population else RunSummary
    return {
        row["method"]: make(float(row[f"avg_{metric}_mean"]), float(row[f"avg_{metric}_std"]), RUNS)
        for row in repeated
    }


def _three_runs(summary: RunSummary) -> list[float]:
    """Three scores of this mean and std; the tests below depend on nothing else of the runs."""
    return [summary.mean - summary.std, summary.mean, summary.mean + summary.std]


def _claims(metric: str, repeated: Sequence[Row], population: bool) -> list[Claim]:
    from scipy.stats import dunnett  # half a second to import

    summaries = _summaries(metric, repeated, population)
    atr = summaries.pop(ATR_REPEATED)
    baselines = [_three_runs(summary) for summary in summaries.values()]
    tests = [welch(atr, baseline, LEVEL) for baseline in summaries.values()]
    adjusted = holm([difference.p for difference in tests]).tolist()
    pooled = dunnett(*baselines, control=_three_runs(atr), rng=np.random.default_rng(0)).pvalue
    aime = {row["method"]: _without_amc(row, metric) for row in repeated}
    gaps = [aime[ATR_REPEATED] - aime[baseline] for baseline in summaries]
    return [
        Claim(metric, *of_baseline)
        for of_baseline in zip(summaries, tests, gaps, adjusted, pooled.tolist(), strict=True)
    ]


def _without_amc(row: Row, metric: str) -> float:
    others = [float(row[f"{name}_{metric}_mean"]) for name in BENCHMARKS if name != "amc23"]
    return sum(others) / len(others)


def _variances(metric: str, repeated: Sequence[Row], population: bool) -> Spreads:
    from scipy.stats import bartlett

    summaries = _summaries(metric, repeated, population)
    p_equal = float(bartlett(*map(_three_runs, summaries.values())).pvalue)
    ratios = [
        summaries[r["method"]].std ** 2 / sampling_variance(r, metric, "mean") for r in repeated
    ]
    freedom = len(ratios) * (RUNS - 1)
    mean = sum(ratios) / len(ratios)
    return Spreads(metric, p_equal, mean, float(chdtrc(freedom, freedom * mean)))


def _gap(metric: str, rows: Sequence[Row]) -> Gap:
    column = f"avg_{metric}_final"
    (atr,) = (row for row in rows if row["method"] == ATR)
    best = max(
        (row for row in rows if row["method"] not in (ATR, BASE)), key=lambda r: float(r[column])
    )
    error = sqrt(sampling_variance(atr, metric) + sampling_variance(best, metric))
    gap = float(atr[column]) - float(best[column])
    margin = float(ndtri((1 + LEVEL) / 2)) * error
    return Gap(atr["model"], metric, best["method"], gap, margin)


def sampling_variance(row: Row, metric: str, at: str = "final") -> float:
    """Variance of a run's average from sampling 8 answers, the problems held fixed, in points^2.

    ``at`` names the columns: ``"final"`` in Table 2, ``"mean"`` in Table 3.

    Difficulty is taken as Beta(a, b) with the printed Mean@8 and Pass@8. Then with
    f(k) = E (1-p)^k = B(a, b+k) / B(a, b), a Mean@8 over n problems varies by
    E p(1-p) / (8n) = (f(1) - f(2)) / (8n) and a Pass@8 by (f(8) - f(16)) / n.
    """
    total = 0.0
    for benchmark, problems in BENCHMARKS.items():
        mean, passed = (float(row[f"{benchmark}_{m}_{at}"]) / 100 for m in METRICS)
        a, b = fit_difficulty(mean, passed)
        if metric == "mean8":
            variance = (_all_wrong(a, b, 1) - _all_wrong(a, b, 2)) / SAMPLES
        else:
            variance = _all_wrong(a, b, SAMPLES) - _all_wrong(a, b, 2 * SAMPLES)
        total += 1e4 * variance / problems / len(BENCHMARKS) ** 2
    return total


def fit_difficulty(mean: float, passed: float) -> tuple[float, float]:
    """(a, b) of the Beta distribution of difficulty with this Mean@8 and Pass@8.

    Args:
      mean: Mean@8, in (0, 1).
      passed: Pass@8, in (mean, 1 - (1 - mean)^8).

    Example:
      >>> a, b = fit_difficulty(0.1333, 0.2667)
      >>> print(f"{a:.3f} {b:.3f}")
      0.085 0.551
    """
    low, high = log(1e-4), log(1e4)
    for _ in range(60):
        a, b = _beta(mean, (low + high) / 2)
        if 1 - _all_wrong(a, b, SAMPLES) < passed:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    return _beta(mean, high)


def _beta(mean: float, log_concentration: float) -> tuple[float, float]:
    return mean * exp(log_concentration), (1 - mean) * exp(log_concentration)


def _all_wrong(a: float, b: float, k: int) -> float:
    return exp(betaln(a, b + k) - betaln(a, b))
