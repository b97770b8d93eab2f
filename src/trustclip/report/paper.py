"""The numbers of the paper that this library implements, audited from its printed tables alone.

The tables are those of Wu et al., "A Unified Framework for Rethinking Policy Divergence Measures
in GRPO": Table 2 (two models, one run a method) and Table 3 (Qwen3-1.7B, three runs a method).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

from rich.console import Console
from rich.table import Table
from scipy.special import betaln, ndtri

from trustclip.report.paper_cells import (
    BENCHMARKS,
    METRICS,
    RUNS,
    SAMPLES,
    Average,
    Row,
    Spread,
    average_of,
    count_of,
    single_run_faults,
    spreads_of,
)
from trustclip.report.paper_cells import printed as _table
from trustclip.stats import Difference, RunSummary, holm, welch

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
    """How many cells fit only a population std (divisor 3), only a sample std, both, neither."""

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
    """ATR against one baseline, three runs each, in points: Welch's test, Holm over baselines."""

    metric: str
    baseline: str
    difference: Difference
    p_holm: float

    @property
    def survives(self) -> bool:
        return self.difference.value > 0 and self.p_holm <= 1 - LEVEL


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
    """What the printed numbers of the two tables can and cannot support.

    Args:
      rows: number of rows of Table 2.
      faults: every inconsistency of Table 2, in words.
      spreads: benchmark cells of Table 3, each with the runs that print as it.
      conventions: which std fits those cells.
      averages: Average cells of Table 3, each with the nearest std its runs can have.
      reruns: method to (cells of its Table 2 run that one of its Table 3 runs has, cells).
      claims: ATR against each other row of Table 3, on the Average of each metric.
      gaps: ATR against the best baseline of Table 2, on the Average, by model and metric.
    """

    rows: int
    faults: list[str]
    spreads: list[Spread]
    conventions: Conventions
    averages: list[Average]
    reruns: dict[str, tuple[int, int]]
    claims: list[Claim]
    gaps: list[Gap]

    @property
    def impossible(self) -> list[Spread]:
        """Cells of Table 3 that no three runs can print."""
        return [spread for spread in self.spreads if not spread.possible]


def audit() -> Audit:
    """Audit the printed numbers of Tables 2 and 3; all of it is computed from the shipped tables.

    Example:
      >>> found = audit()
      >>> [(cell.method, cell.mean, cell.repair) for cell in found.impossible]
      [('Clip (ε = 0.329)', 40.18, 40.16)]
      >>> [claim.baseline for claim in found.claims if claim.survives]
      []
    """
    single, repeated = _table("paper_table2.csv"), _table("paper_table3.csv")
    cells = [(row, spreads_of(row, metric)) for row in repeated for metric in METRICS]
    spreads = [spread for _, of_row in cells for spread in of_row]
    conventions = Conventions.of([(len(s.population) > 0, len(s.sample) > 0) for s in spreads])
    population = conventions.population >= conventions.sample
    return Audit(
        rows=len(single),
        faults=[fault for row in single for fault in single_run_faults(row)],
        spreads=spreads,
        conventions=conventions,
        averages=[average_of(row, of_row) for row, of_row in cells],
        reruns={method: _rerun(method, single, spreads) for method in REPEATED},
        claims=[claim for metric in METRICS for claim in _claims(metric, repeated, population)],
        gaps=[
            _gap(metric, [row for row in single if row["model"] == model])
            for model in dict.fromkeys(row["model"] for row in single)
            for metric in METRICS
        ],
    )


def _rerun(method: str, single: Sequence[Row], spreads: Sequence[Spread]) -> tuple[int, int]:
    (row,) = (r for r in single if (r["model"], r["method"]) == (REPEATED_MODEL, method))
    cells = [spread for spread in spreads if spread.method == REPEATED[method]]
    hits = sum(
        count_of(float(row[f"{cell.benchmark}_{cell.metric}_final"]), cell.answers) in cell.runs
        for cell in cells
    )
    return hits, len(cells)


def _claims(metric: str, repeated: Sequence[Row], population: bool) -> list[Claim]:
    make = RunSummary.from_population_std if population else RunSummary
    summaries = {
        row["method"]: make(float(row[f"avg_{metric}_mean"]), float(row[f"avg_{metric}_std"]), RUNS)
        for row in repeated
    }
    atr = summaries.pop(ATR_REPEATED)
    found = [welch(atr, baseline, LEVEL) for baseline in summaries.values()]
    adjusted = holm([difference.p for difference in found]).tolist()
    return [
        Claim(metric, name, difference, p)
        for name, difference, p in zip(summaries, found, adjusted, strict=True)
    ]


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


def sampling_variance(row: Row, metric: str) -> float:
    """Variance of a run's average from sampling 8 answers, the problems held fixed, in points^2.

    Difficulty is taken as Beta(a, b) with the printed Mean@8 and Pass@8. Then with
    f(k) = E (1-p)^k = B(a, b+k) / B(a, b), a Mean@8 over n problems varies by
    E p(1-p) / (8n) = (f(1) - f(2)) / (8n) and a Pass@8 by (f(8) - f(16)) / n.
    """
    total = 0.0
    for benchmark, problems in BENCHMARKS.items():
        mean, passed = (float(row[f"{benchmark}_{m}_final"]) / 100 for m in METRICS)
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


def render(found: Audit, console: Console | None = None) -> None:
    """Print an audit.

    Args:
      found: from `audit`.
      console: where to; standard output if None.
    """
    console = console or Console(soft_wrap=True)
    console.print("[bold]Table 2[/], one run a method: is every cell a whole number of answers?")
    console.print(
        f"  {found.rows} rows, {len(found.faults) or 'no'} inconsistent cells or averages"
    )
    for fault in found.faults:
        console.print(f"  {fault}")
    _render_spreads(found, console)
    for metric in METRICS:
        claims = [claim for claim in found.claims if claim.metric == metric]
        console.print(_claims_table(METRICS[metric], claims))
    console.print(_gaps_table(found.gaps))
    _render_verdict(found, console)


def _render_spreads(found: Audit, console: Console) -> None:
    console.print("\n[bold]Table 3[/], mean ± std of three runs: which runs lie behind it?")
    for cell in found.impossible:
        repair = "" if cell.repair is None else f"; {cell.repair:.2f} would fit, its average too"
        console.print(
            f"  impossible: {cell.method}, {cell.benchmark} {METRICS[cell.metric]} "
            f"{cell.mean:.2f} ± {cell.std:.2f} is no mean of three counts of {cell.answers}{repair}"
        )
    for cell in found.averages:
        if not any(cell.fits):
            console.print(
                f"  not reproduced: {cell.method}, Average {METRICS[cell.metric]} {cell.mean:.2f} "
                f"± {cell.std:.2f}; no pairing of its runs comes nearer than {cell.population:.2f}"
            )
    unique = sum(len(cell.population) == 1 for cell in found.spreads)
    console.print(f"  {unique} of {len(found.spreads)} cells admit exactly one triple of runs")
    averages = Conventions.of([cell.fits for cell in found.averages])
    for name, fit in (("benchmark", found.conventions), ("Average", averages)):
        console.print(
            f"  std of {name} cells: {fit.population} fit only the population std (divisor 3), "
            f"{fit.sample} only the sample std, {fit.both} both, {fit.neither} neither"
        )
    for method, (hits, cells) in found.reruns.items():
        meaning = "may be one of them" if hits == cells else "is another run"
        console.print(
            f"  {method}: {hits} of {cells} cells of its run in Table 2 occur among the three "
            f"runs, so it {meaning}"
        )


def _claims_table(metric: str, claims: Sequence[Claim]) -> Table:
    table = Table(
        "baseline", title=f"KL3 minus baseline, Average {metric}, Table 3", title_justify="left"
    )
    for head in ("points", "95 % interval", "p (Welch)", f"p (Holm, {len(claims)})"):
        table.add_column(head, justify="right")
    for claim in sorted(claims, key=lambda c: c.difference.p):
        d = claim.difference
        interval = f"[{d.low:+.1f}, {d.high:+.1f}]".replace("[", r"\[")
        table.add_row(
            claim.baseline, f"{d.value:+.2f}", interval, f"{d.p:.3f}", f"{claim.p_holm:.3f}"
        )
    return table


def _gaps_table(gaps: Sequence[Gap]) -> Table:
    table = Table(
        "model", "metric", "best baseline", title="ATR minus best baseline, Average, Table 2",
        title_justify="left",
    )  # fmt: skip
    for head in ("points", "sampling margin, 95 %"):
        table.add_column(head, justify="right")
    for gap in gaps:
        table.add_row(
            gap.model, METRICS[gap.metric], gap.baseline, f"{gap.value:+.2f}", f"± {gap.margin:.2f}"
        )
    return table


def _render_verdict(found: Audit, console: Console) -> None:
    console.print("[bold]What survives[/]")
    for metric, name in METRICS.items():
        claims = [claim for claim in found.claims if claim.metric == metric]
        ahead = sum(claim.difference.value > 0 for claim in claims)
        alone = sum(c.difference.value > 0 and c.difference.p <= 1 - LEVEL for c in claims)
        kept = [claim.baseline for claim in claims if claim.survives]
        console.print(
            f"  {name}: KL3's mean is above {ahead} of {len(claims)} baselines; {alone} gaps have "
            f"p <= {1 - LEVEL:.2f} alone, after Holm {', '.join(kept) or 'none'}"
        )
    resolved = [f"{g.model} {METRICS[g.metric]}" for g in found.gaps if g.resolved]
    console.print(
        "  Table 2: gaps to the best baseline that exceed sampling noise: "
        + (", ".join(resolved) or "none")
    )
