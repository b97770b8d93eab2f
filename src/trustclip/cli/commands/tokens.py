"""Commands about the tokens of recorded completions, and what a constraint does to them."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from rich.table import Column, Table

from trustclip.cli.commands.constraints import print_twins
from trustclip.support.checked import Count
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, print_table, say
from trustclip.support.text import percent
from trustclip.support.yaml_files import yaml_list


@dataclasses.dataclass
class Tokens:
    run: Argument[Path]
    """A run directory, or a file of tokens (.parquet, .jsonl)."""
    update: int | None = None
    """Show only completions used in this update, counted from 1; all when unset."""
    worst: bool = False
    """Show the completions of which the largest share is cut, instead of the first."""
    count: Count = 3
    """Number of completions."""
    constraint: str = "this run"
    """Whose cuts to show: those of the run, or those that clip, clip_higher, atr, dppo, gspo or
    icepop with default settings would have made on the same tokens."""

    def __call__(self) -> None:
        from trustclip.report.token_console import print_tokens

        options = {**vars(self)}
        print_tokens(options.pop("run"), Terminal(highlight=False), **options)


@dataclasses.dataclass
class Microscope:
    """A page, one file, that shows completions token by token under several methods at once."""

    files: Argument[tuple[Path, ...]] = ()
    """Files of tokens (.parquet, .jsonl), run directories, prime-rl's token export; without any,
    the page shows a sample."""
    out: Annotated[Path, Also(("-o",))] = Path("microscope.html")
    """File of the page."""
    open: bool = False
    """Show the page in the browser."""

    def __call__(self) -> None:
        if not self.out.absolute().parent.is_dir():
            raise ValueError(f"--out {self.out}: the folder {self.out.parent} does not exist.")
        from trustclip.report.microscope import token_page
        from trustclip.support.jsonl import write_text

        write_text(self.out, token_page(self.files, "Microscope"))
        say(self.out)
        if self.open:
            import webbrowser

            webbrowser.open(self.out.absolute().as_uri())


@dataclasses.dataclass
class Shadow:
    """Which tokens of a run other methods would have cut.

    Precision is the share of a method's cuts that the acting method made, too. Recall is the share
    of the acting method's cuts that the method would have made. Jaccard is the share of what either
    cut that both cut. The cosine is that of their gradients' coefficients.

    --suggest METHOD prints the threshold at which METHOD would have cut a share of the tokens, and
    what stock TRL and verl call it. If METHOD has several thresholds, one factor moves them all.
    """

    logs: Argument[tuple[Path, ...]]
    """Files of tokens (.jsonl or .parquet), folders of them, or run directories."""
    methods: str = "all"
    """Methods, such as "atr, {name: clip, epsilon: 0.1}"; or all for which the log has the data."""
    acting: str = "clip"
    """Method to compare with, if the log does not record the acting one."""
    suggest: str = ""
    """Method whose threshold is sought, such as atr or "{name: clip_higher, high: 0.4}"."""
    share: float = 0.02
    """Share of the tokens that this method should have cut."""
    figure: Path | None = None
    """Write the matrix of the methods as a picture (SVG) to this file."""

    def __call__(self) -> None:
        if not self.methods.strip():
            raise ValueError("--methods is empty: name at least one, or leave it out.")
        from trustclip.constraints.base import methods as every
        from trustclip.constraints.registry import as_method, method
        from trustclip.constraints.shadow import shadow_methods
        from trustclip.logs.watched import able, supplied, watch

        if self.suggest:
            from trustclip.findings.shadows import suggest

            sought = as_method(yaml_list(self.suggest)[0])
            return _print_suggestion(suggest(sought, self.share, self.logs))
        fields, left_out = supplied(self.logs), {}
        if self.methods == "all":
            shadows, left_out = able([method(name) for name in every()], fields)
        else:
            shadows = shadow_methods(yaml_list(self.methods), fields, "this log")
        (acting,) = shadow_methods(yaml_list(self.acting), fields, "this log")
        result = watch(self.logs, shadows, acting)
        _print_shadows(result)
        for reason in left_out.values():
            say(f"left out: {reason}")
        if self.figure is not None:
            from trustclip.findings.shadows import matrix
            from trustclip.report.draw.figures import matrices

            grid = matrix(result.acting, result.metrics)
            assert grid is not None  # there is at least one method
            self.figure.write_text(matrices(grid.names, grid.panels), encoding="utf-8")
            say(self.figure)


def _print_shadows(result: Any) -> None:
    say(
        f"{result.tokens:,} tokens of {result.completions:,} completions with an advantage; "
        f"{result.acting} cut {percent(result.metrics['gated'], 2)} % of them."
    )
    titles = ("cut %", "precision %", "recall %", "Jaccard %", "cosine")
    numbers = (Column(title, justify="right") for title in titles)
    table = Table(Column("method", no_wrap=True), *numbers, box=None, pad_edge=False)

    def of(label: str, key: str) -> float | None:
        return result.metrics.get(f"shadow/{label}/{key}")

    for label in sorted(result.labels, key=lambda name: -(of(name, "gated") or 0)):
        shares = [percent(of(label, "gated"), 2)]
        shares += [percent(of(label, key)) for key in ("precision", "recall", "jaccard")]
        cosine = of(label, "cosine")
        table.add_row(label, *shares, "-" if cosine is None else f"{cosine:.4f}")
    print_table(Terminal(), table)


def _print_suggestion(suggestion: Any) -> None:
    say(suggestion.method)
    say(f"would have cut {percent(suggestion.share, 2)} % of {suggestion.tokens:,} tokens")
    if len(suggestion.moved) > 1:
        say(f"these were moved together by one factor: {', '.join(suggestion.moved)}")
    print_twins(suggestion.method)
