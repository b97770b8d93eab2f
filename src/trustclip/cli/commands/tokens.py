"""The command that shows recorded tokens in the terminal."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from trustclip.cli.arguments import parse


def tokens(argv: Sequence[str]) -> int:
    """``trustclip tokens RUN [--step N] [--worst]``: completions, and what was cut in them."""

    @dataclasses.dataclass
    class Options:
        run: tyro.conf.Positional[Path]
        """A run directory, or a file of tokens (.parquet, .jsonl)."""
        step: int | None = None
        """Only completions used in this update; all when unset."""
        worst: bool = False
        """Show the completions of which the largest share is cut, instead of the first."""
        count: int = 3
        """Number of completions."""
        constraint: str = "this run"
        """Constraint to look through: of the run, or clip, clip_higher, atr, dppo, gspo, icepop at
        their defaults, computed from the recorded log-probabilities."""

    options = parse(Options, argv, "tokens")
    if options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}.")
    from trustclip.report.token_console import print_tokens

    print_tokens(
        options.run,
        Console(highlight=False),
        step=options.step,
        worst=options.worst,
        count=options.count,
        constraint=options.constraint,
    )
    return 0
