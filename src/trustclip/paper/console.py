"""The audit of the paper's tables on the console: ``trustclip paper``."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from trustclip.paper.audit import LEVEL, Audit, Claim, Conventions, Gap
from trustclip.paper.cells import METRICS


def render(found: Audit, console: Console | None = None) -> None:
    """Print an audit.

    Args:
      found: from `audit`.
      console: standard output if None.
    """
    console = console or Console(soft_wrap=True)
    console.print("[bold]Table 2[/], one run per method: is every cell a whole number of answers?")
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
    console.print("\n[bold]Table 3[/], mean ± std of three runs: which runs produce it?")
    for cell in found.impossible:
        repair = "" if cell.repair is None else f"; {cell.repair:.2f} would fit, also the average"
        console.print(
            f"  impossible: {cell.method}, {cell.benchmark} {METRICS[cell.metric]} "
            f"{cell.mean:.2f} ± {cell.std:.2f} is not a mean of three counts of "
            f"{cell.answers}{repair}"
        )
    for cell in found.averages:
        if not any(cell.fits):
            console.print(
                f"  not reproduced: {cell.method}, Average {METRICS[cell.metric]} {cell.mean:.2f} "
                f"± {cell.std:.2f}; no pairing of its runs comes closer than {cell.population:.2f}"
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
    heads = ("points", "95 % interval", "p (Welch)", f"p (Holm, {len(claims)})", "p (Dunnett)")
    for head in heads:
        table.add_column(head, justify="right")
    for claim in sorted(claims, key=lambda c: c.difference.p):
        d = claim.difference
        interval = f"[{d.low:+.1f}, {d.high:+.1f}]".replace("[", r"\[")
        table.add_row(
            claim.baseline, f"{d.value:+.2f}", interval,
            *(
                "< 0.001" if p < 0.0005 else f"{p:.3f}"
                for p in (d.p, claim.p_holm, claim.p_dunnett)
            ),
        )  # fmt: skip
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
        kept, pooled = (sum(keep) for keep in zip(
            *((c.survives, c.survives_pooled) for c in claims), strict=True
        ))  # fmt: skip
        (spread,) = (s for s in found.variances if s.metric == metric)
        console.print(
            f"  {name}: KL3's mean is above {ahead} of {len(claims)} baselines; {alone} gaps have "
            f"p <= {1 - LEVEL:.2f} by Welch's test alone, {kept} after Holm's correction, "
            f"{pooled} by Dunnett's test"
        )
        console.print(
            f"    Dunnett's test takes all methods to have one variance: Bartlett's test of that "
            f"has p = {spread.p_equal:.2f}. The three runs of a method vary "
            f"{spread.ratio:.2f} times as much as sampling 8 answers alone would make them "
            f"(p = {spread.p_sampling:.2f})"
        )
    console.print(
        "    With 3 runs Welch's test with Holm's correction has little power, so it does not show "
        "that the methods are equal. Neither test accounts for delta having been chosen on the "
        "same problems (the paper's Figure 3)"
    )
    resolved = [f"{g.model} {METRICS[g.metric]}" for g in found.gaps if g.resolved]
    console.print(
        "  Table 2: gaps to the best baseline that exceed sampling noise: "
        + (", ".join(resolved) or "none")
    )
