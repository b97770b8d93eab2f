"""The audit of the paper's tables on the console: ``trustclip paper``."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip.support.terminal import print_table
from trustclip_lab.paper.audit import LEVEL, Audit, Claim, Conventions, Gap
from trustclip_lab.paper.cells import METRICS
from trustclip_lab.paper.power import Power


def render(audit: Audit, console: Console | None = None) -> None:
    """Print an audit.

    Args:
      audit: of the paper's tables.
      console: standard output if None.
    """
    console = console or Console(soft_wrap=True, markup=False)
    title = Text.assemble(("Table 2", "bold"), ", one run per method: ")
    console.print(title.append("is every cell a whole number of answers?"))
    console.print(
        f"  {audit.rows} rows, {audit.cells} scores, "
        f"{len(audit.faults) or 'no'} inconsistent cells or averages"
    )
    for fault in audit.faults:
        console.print(f"  {fault}")
    _render_spreads(audit, console)
    for metric in METRICS:
        claims = [claim for claim in audit.claims if claim.metric == metric]
        print_table(console, _claims_table(METRICS[metric], claims))
    print_table(console, _gaps_table(audit.gaps), keys=3)
    _render_verdict(audit, console)


def _render_spreads(audit: Audit, console: Console) -> None:
    title = Text.assemble("\n", ("Table 3", "bold"), ", mean ± std of three runs: ")
    console.print(title.append("which runs produce it?"))
    for cell in audit.impossible:
        repair = "" if cell.repair is None else f"; {cell.repair:.2f} would fit, also the average"
        console.print(
            f"  impossible: {cell.method}, {cell.benchmark} {METRICS[cell.metric]} "
            f"{cell.mean:.2f} ± {cell.std:.2f} is not a mean of three counts of "
            f"{cell.answers}{repair}"
        )
    for cell in audit.averages:
        if not any(cell.fits):
            console.print(
                f"  not reproduced: {cell.method}, Average {METRICS[cell.metric]} {cell.mean:.2f} "
                f"± {cell.std:.2f}; no pairing of its runs comes closer than {cell.population:.2f}"
            )
    unique = sum(len(cell.population) == 1 for cell in audit.spreads)
    console.print(f"  {unique} of {len(audit.spreads)} cells admit exactly one triple of runs")
    averages = Conventions.of([cell.fits for cell in audit.averages])
    for name, fit in (("benchmark", audit.conventions), ("Average", averages)):
        console.print(
            f"  std of {name} cells: {fit.population} fit only the population std (divisor 3), "
            f"{fit.sample} only the sample std, {fit.both} both, {fit.neither} neither"
        )
    for method, (hits, cells) in audit.reruns.items():
        meaning = "may be one of them" if hits == cells else "is another run"
        console.print(
            f"  {method}: {hits} of {cells} cells of its run in Table 2 occur among the three "
            f"runs, so it {meaning}"
        )


def _claims_table(metric: str, claims: Sequence[Claim]) -> Table:
    table = Table(
        "baseline", title=f"KL3 minus baseline, Average {metric}, Table 3", title_justify="left",
        box=None, pad_edge=False,
    )  # fmt: skip
    heads = (
        "points",
        "AIME alone",
        "95 % interval",
        "p (Welch)",
        f"p (Holm, {len(claims)})",
        "p (Dunnett)",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for claim in sorted(claims, key=lambda c: c.difference.p):
        d = claim.difference
        interval = f"[{d.low:+.1f}, {d.high:+.1f}]"
        table.add_row(
            claim.baseline, f"{d.value:+.2f}", f"{claim.without_amc:+.2f}", interval,
            *(
                "< 0.001" if p < 0.0005 else f"{p:.3f}"
                for p in (d.p, claim.p_holm, claim.p_dunnett)
            ),
        )  # fmt: skip
    return table


def _gaps_table(gaps: Sequence[Gap]) -> Table:
    table = Table(
        "model", "metric", "best baseline", title="ATR minus best baseline, Average, Table 2",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for head in ("points", "sampling margin, 95 %"):
        table.add_column(head, justify="right")
    for gap in gaps:
        table.add_row(
            gap.model, METRICS[gap.metric], gap.baseline, f"{gap.value:+.2f}", f"± {gap.margin:.2f}"
        )
    return table


def _render_verdict(audit: Audit, console: Console) -> None:
    console.print(Text("What survives", "bold"))
    for metric, name in METRICS.items():
        claims = [claim for claim in audit.claims if claim.metric == metric]
        ahead = sum(claim.difference.value > 0 for claim in claims)
        alone = sum(c.difference.value > 0 and c.difference.p <= 1 - LEVEL for c in claims)
        by_welch, by_dunnett = (sum(keep) for keep in zip(
            *((c.survives, c.survives_pooled) for c in claims), strict=True
        ))  # fmt: skip
        (spread,) = (s for s in audit.variances if s.metric == metric)
        console.print(
            f"  {name}: KL3's mean is above {ahead} of {len(claims)} baselines; {alone} gaps have "
            f"p <= {1 - LEVEL:.2f} by Welch's test alone, {by_welch} after Holm's correction, "
            f"{by_dunnett} by Dunnett's test"
        )
        console.print(
            f"    Dunnett's test takes all methods to have one variance: Bartlett's test of that "
            f"has p = {spread.p_equal:.2f}. The three runs of a method vary "
            f"{spread.ratio:.2f} times as much as sampling 8 answers alone would make them "
            f"(p = {spread.p_sampling:.2f})"
        )
    for one in audit.power:
        console.print(f"  {METRICS[one.metric]}: {_power_text(one)}")
    console.print(
        "    (one baseline behind by that much). That no gap survives Holm's correction does not "
        "show that the methods are equal. Neither test accounts for delta having been chosen on "
        "the same problems (the paper's Figure 3)"
    )
    other = [claim for claim in audit.other_claims if claim.survives]
    by_dunnett = sum(claim.survives_pooled for claim in audit.other_claims)
    std = "sample" if audit.conventions.population >= audit.conventions.sample else "population"
    console.print(
        f"  Had the printed stds been {std} stds, {len(other)} of {len(audit.other_claims)} gaps "
        f"would survive Holm's correction and {by_dunnett} Dunnett's test"
    )
    resolved = [f"{g.model} {METRICS[g.metric]}" for g in audit.gaps if g.resolved]
    console.print(
        "  Table 2: gaps to the best baseline that exceed sampling noise: "
        + (", ".join(resolved) or "none")
    )
    _render_context(audit, console)


def _power_text(one: Power) -> str:
    """What both tests find, in words."""
    chances = zip(one.gaps, one.welch, one.dunnett, strict=True)
    each = "; ".join(f"{gap:g} points {w:.0%} and {d:.0%}" for gap, w, d in chances)
    return f"with 3 runs of std {one.std:.2f}, Welch's test with Holm and Dunnett's find {each}"


def _render_context(audit: Audit, console: Console) -> None:
    context = audit.context
    low, high = context.interval
    console.print(Text("What the tables do not say", "bold"))
    console.print(
        f"  Contamination: {context.contaminated} of the {context.amc} AMC problems occur in "
        "DAPO-Math-17k, word for word or reworded (each pair was read); the paper excludes "
        "none. The column AIME alone leaves AMC out"
    )
    if context.inert:
        console.print(
            f"  Schedule: Table 4 with TRL's defaults makes {context.updates_per_generation:g} "
            "update per generation, so every ratio is 1 and no constraint acts; the paper states "
            "neither num_iterations nor steps_per_generation. If it left them, its methods differ "
            "by chance"
        )
    if not context.twin_tested:
        console.print(
            f"  Twin: KL3 at 0.07 bounds the ratio to [{low:.3f}, {high:.3f}], so it is "
            f"clip-higher ({1 - low:.3f}, {high - 1:.3f}) token by token; Table 3 has no such row"
        )
    gap = next(g for g in audit.gaps if g.metric == "pass8")
    console.print(
        f"  Text: section 6.2 calls Dual Clip the best baseline of {gap.model}; for Pass@8 it "
        f"is {gap.baseline}. Each best score is the highest of 20 evaluations on the test "
        "problems. Figure 4 has Pass@1 24.36, which estimates the same as Mean@K, there about 23"
    )
