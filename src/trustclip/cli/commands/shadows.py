"""Commands that put other methods in the place of the acting one, on a file of tokens."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from trustclip.cli.arguments import method_from, reads, taken
from trustclip.settings.marks import Argument
from trustclip.support.terminal import Terminal, say
from trustclip.support.text import percent

_SUGGEST = """\
usage: trustclip suggest METHOD [--share 0.02] LOGS... [--HYPER-PARAMETER VALUE ...]

The thresholds at which METHOD would have cut a share of the recorded tokens, and what stock TRL
and verl call them. All thresholds are moved by one factor, from the given hyper-parameters or the
defaults. LOGS: files of tokens (.jsonl or .parquet), folders of them, or run directories.

Methods: """


@dataclasses.dataclass
class Shadow:
    """What other methods would have cut of the tokens of a run."""

    logs: Argument[tuple[Path, ...]]
    """Files of tokens (.jsonl or .parquet), folders of them, or run directories."""
    methods: str = "all"
    """Methods, such as "atr, {name: clip, epsilon: 0.1}"; or all that the log suffices for."""
    acting: str = "clip"
    """Method to compare with, where the log does not record what acted."""
    figure: Path | None = None
    """Write the matrix of the methods as a picture (SVG) to this file."""


@reads(Shadow)
def shadow(options: Shadow) -> int:
    if not options.logs or not options.methods.strip():
        raise ValueError("give at least one file of tokens, and one method.")
    from trustclip.constraints.base import methods as every
    from trustclip.constraints.registry import method
    from trustclip.constraints.shadow import shadow_methods
    from trustclip.runs.watched import able, supplied, watch
    from trustclip.settings.stages import yaml_list

    fields, left_out = supplied(options.logs), {}
    if options.methods == "all":
        chosen, left_out = able([method(name) for name in every()], fields)
    else:
        chosen = shadow_methods(yaml_list(options.methods), fields, "this log")
    (acting,) = shadow_methods(yaml_list(options.acting), fields, "this log")
    seen = watch(options.logs, chosen, acting)
    _print_shadows(seen, Terminal())
    for reason in left_out.values():
        say(f"left out: {reason}")
    if options.figure is not None:
        from trustclip.findings.shadows import matrix
        from trustclip.report.draw.figures import matrices

        drawn = matrix(seen.acting, seen.metrics)
        assert drawn is not None  # there is at least one method
        options.figure.write_text(matrices(drawn.names, drawn.panels), encoding="utf-8")
        say(options.figure)
    return 0


def _print_shadows(seen: Any, console: Terminal) -> None:
    say(
        f"{seen.tokens:,} tokens of {seen.completions:,} completions with an advantage; "
        f"{seen.acting} gated {percent(seen.metrics['gated'], 2)} % of them."
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for title in ("gated %", "precision %", "recall %", "Jaccard %", "cosine"):
        table.add_column(title, justify="right")

    def of(label: str, key: str) -> float | None:
        return seen.metrics.get(f"shadow/{label}/{key}")

    for label in sorted(seen.labels, key=lambda name: -(of(name, "gated") or 0)):
        shares = [percent(of(label, "gated"), 2)]
        shares += [percent(of(label, key)) for key in ("precision", "recall", "jaccard")]
        cosine = of(label, "cosine")
        table.add_row(label, *shares, "-" if cosine is None else f"{cosine:.4f}")
    console.print(table)


def suggest(argv: Sequence[str]) -> int:
    if not argv or argv[0].startswith("-"):
        from trustclip.constraints.base import methods

        say(_SUGGEST + ", ".join(methods()))
        return 0 if argv else 2
    name, *rest = argv
    rest, share = taken(rest, "--share")
    from trustclip.runs.suggest import suggest as find

    logs, flags = _split(rest)
    if not logs:
        raise ValueError("give at least one file of tokens.")
    chosen = method_from(name, flags, f"suggest {name}")
    try:
        wanted = float("0.02" if share is None else share)
    except ValueError:
        raise ValueError(f"--share must be a number such as 0.02, got {share!r}.") from None
    _print_suggestion(find(chosen, wanted, logs))
    return 0


def _split(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    paths: list[Path] = []
    flags: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            paths.append(Path(word))
            continue
        flags.append(word)
        if "=" not in word and rest:
            flags.append(rest.pop(0))
    return paths, flags


def _print_suggestion(found: Any) -> None:
    from trustclip.cli.commands.constraints import print_twins

    share = found.share
    say(found.method)
    say(
        f"would have cut {percent(share.value, 2)} % [{percent(share.low, 2)}, "
        f"{percent(share.high, 2)}] of {found.tokens:,} tokens (95 % interval over "
        f"{found.clusters} {found.unit})"
    )
    if len(found.moved) > 1:
        say(f"moved together, their ratios kept: {', '.join(found.moved)}")
    for name, (low, value, high) in found.moved.items():
        say(f"{name} = {value:.4g} [{low:.4g}, {high:.4g}]")
    print_twins(found.method)
