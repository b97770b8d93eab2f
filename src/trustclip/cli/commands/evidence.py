"""Commands that say what runs and logs show: report, explain, compare, power."""

import dataclasses
from pathlib import Path
from typing import Annotated

from trustclip.cli.arguments import reads
from trustclip.logs.choice import Choice
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say


@dataclasses.dataclass(kw_only=True)
class Compare(Choice):
    """Differences between evaluations, with intervals and p-values."""

    runs: Argument[tuple[Path, ...]]
    """Run directories, or scores of other programs, each perhaps named as ARM=PATH or
    ARM@SEED=PATH. Runs that differ only in their seed are pooled, and the method of the first is
    the reference."""
    step: int | None = None
    """Compare at this update instead of at each run's last evaluation."""
    json: bool = False
    """Print the comparisons as JSON, for programs."""
    latex: bool = False
    """Print a row of LaTeX for each comparison."""
    figure: Path | None = None
    """Also draw scores and differences into this file, SVG or PDF."""


@reads(Compare)
def compare(options: Compare) -> int:
    from trustclip.report.console import print_comparison

    form = "json" if options.json else "latex" if options.latex else "text"
    print_comparison(options.runs, Terminal(), options, options.step, form, options.figure)
    return 0


@dataclasses.dataclass(kw_only=True)
class Power(Choice):
    """How many seeds would find a gap, from the runs of a pilot."""

    runs: Argument[tuple[Path, ...]]
    """Pilot runs: run directories, the folder of a suite, or scores of other programs as in
    `compare`; of two methods or more from the same seeds, or of one."""
    gap: float = 3.0
    """Difference that would matter, in points of the score."""
    power: float = 0.8
    """Probability of detecting this difference."""
    comparisons: int | None = None
    """Number of methods that the planned experiment compares with its reference; those of the
    pilot when unset."""


@reads(Power)
def power(options: Power) -> int:
    from trustclip.report.planning import print_power

    plan = options.gap, options.power, options.comparisons
    print_power(options.runs, Terminal(), *plan, options)
    return 0


@dataclasses.dataclass(kw_only=True)
class Report(Choice):
    """A page, tables and figures from run directories, logs and scores."""

    runs: Argument[tuple[Path, ...]]
    """Run directories, the folder of a suite, logs of TRL, verl and prime-rl, tokens, or scores of
    other programs as in `compare`."""
    output_dir: Annotated[Path, Also(("-o",))] = Path("report")
    """Folder of the page, the tables and the figures."""
    reaches: float | None = None
    """Also report after how many updates a run first reaches this score, such as 0.9; a suite file
    can set it too."""


@reads(Report)
def report(options: Report) -> int:
    from trustclip.report.build import build

    for path in build(options.runs, options.output_dir, reaches=options.reaches, choice=options):
        say(path)
    return 0


@dataclasses.dataclass
class Explain:
    """What the constraint did in a run or in another trainer's log."""

    run: Argument[Path]
    """A run directory; or a log of another trainer: TRL's trainer_state.json, TensorBoard
    events, an offline run of wandb, verl's console log or JSON lines, prime-rl's token export,
    tokens.jsonl or tokens.parquet."""


@reads(Explain)
def explain(options: Explain) -> int:
    from trustclip.report.console import explain as paragraphs

    console = Terminal(width=min(Terminal().width, 100), highlight=False)
    for paragraph in paragraphs(options.run):
        console.print(paragraph, markup=False)
    return 0
