"""Commands that say what runs and logs show: report, explain, compare, power."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from trustclip.cli.arguments import reads
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say

if TYPE_CHECKING:
    from trustclip.logs.scores import Choice


@dataclasses.dataclass(kw_only=True)
class Scores:
    """How scores of other programs are read; see docs/compare.md."""

    columns: str = ""
    """Which column says what, as in arm=model,seed=run,problem=id,sample=k,score=correct. Further
    parts: step, task, family, and of (then the score is a count of right answers)."""
    where: str = ""
    """Read only rows with these values, as in filter=strict-match."""
    cluster: str = ""
    """Column that names the family of a problem, or a sign such as -: then the part of its id
    before the last such sign is its family. Families are the independent units of all tests."""
    right: float | None = None
    """Score from which on an answer is right; scores are shares from 0 to 1 when unset."""
    curve: str = ""
    """Compare this curve of TensorBoard, wandb or tables, one log for each run."""
    by: Literal["end", "area", "best"] = "end"
    """What is compared of a curve; name it before you look."""

    def choice(self) -> "Choice":
        from trustclip.logs.scores import Choice, pairs_of

        columns, where = pairs_of(self.columns, "columns"), pairs_of(self.where, "where")
        return Choice(columns, where, self.cluster, self.right, self.curve, self.by)


@dataclasses.dataclass(kw_only=True)
class Compare(Scores):
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
    print_comparison(
        options.runs,
        Terminal(),
        step=options.step,
        choice=options.choice(),
        form=form,
        figure=options.figure,
    )
    return 0


@dataclasses.dataclass(kw_only=True)
class Power(Scores):
    """How many seeds would find a gap, from the runs of a pilot."""

    runs: Argument[tuple[Path, ...]]
    """Pilot runs: run directories, the folder of a suite, or scores of other programs as in
    `compare`; of two methods or more from the same seeds, or of one."""
    gap: float = 3.0
    """Difference that would matter, in points of the score."""
    power: float = 0.8
    """Probability of detecting it."""
    comparisons: int | None = None
    """Number of methods that the planned experiment compares with its reference; those of the
    pilot when unset."""


@reads(Power)
def power(options: Power) -> int:
    from trustclip.report.planning import print_power

    print_power(
        options.runs,
        Terminal(),
        gap=options.gap,
        power=options.power,
        comparisons=options.comparisons,
        choice=options.choice(),
    )
    return 0


@dataclasses.dataclass(kw_only=True)
class Report(Scores):
    """A page, tables and figures from run directories, logs and scores."""

    runs: Argument[tuple[Path, ...]]
    """Run directories, the folder of a suite, logs of TRL, verl and prime-rl, tokens, or scores of
    other programs as in `compare`."""
    output_dir: Annotated[Path, Also(("-o",))] = Path("report")
    """Folder of the page, the tables and the figures."""
    reaches: float | None = None
    """Also report how many updates it takes to score this, a share of 1 such as 0.9; a suite
    file may set it as well."""


@reads(Report)
def report(options: Report) -> int:
    from trustclip.report.build import build

    choice = options.choice()
    for path in build(options.runs, options.output_dir, reaches=options.reaches, choice=choice):
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
