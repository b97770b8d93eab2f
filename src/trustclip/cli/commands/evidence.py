"""Commands that say what runs and logs show: report, explain, compare, power."""

import dataclasses
from pathlib import Path
from typing import Annotated

from trustclip.logs.choice import Choice
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say


@dataclasses.dataclass(kw_only=True)
class Compare(Choice):
    runs: Argument[tuple[Path, ...]]
    """Run directories; or scores of other programs, which may be named: ARM=PATH, ARM@SEED=PATH.
    Runs that differ only in their seed are pooled. The method of the first is the reference."""
    step: int | None = None
    """Compare at this update instead of at each run's last evaluation."""
    json: bool = False
    """Print the comparisons as JSON, for programs."""
    latex: bool = False
    """Print a row of LaTeX for each comparison."""
    figure: Path | None = None
    """Also draw scores and differences into this file, SVG or PDF."""

    def __call__(self) -> None:
        from trustclip.report.console import print_comparison

        form = "json" if self.json else "latex" if self.latex else "text"
        print_comparison(self.runs, Terminal(), self, self.step, form, self.figure)


@dataclasses.dataclass(kw_only=True)
class Power(Choice):
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

    def __call__(self) -> None:
        from trustclip.report.planning import print_power

        print_power(self.runs, Terminal(), self.gap, self.power, self.comparisons, self)


@dataclasses.dataclass(kw_only=True)
class Report(Choice):
    runs: Argument[tuple[Path, ...]]
    """Run directories, the folder of a suite, logs of TRL, verl and prime-rl, tokens, or scores of
    other programs as in `compare`."""
    output_dir: Annotated[Path, Also(("-o",))] = Path("report")
    """Folder of the page, the tables and the figures."""
    reaches: float | None = None
    """Also report after how many updates a run first reaches this score, such as 0.9; a suite file
    can set it too."""

    def __call__(self) -> None:
        from trustclip.report.page import build

        for path in build(self.runs, self.output_dir, reaches=self.reaches, choice=self):
            say(path)


@dataclasses.dataclass
class Explain:
    run: Argument[Path]
    """A run directory; or a log of another trainer: TRL's trainer_state.json, TensorBoard
    events, an offline run of wandb, verl's console log or JSON lines, prime-rl's token export,
    tokens.jsonl or tokens.parquet."""

    def __call__(self) -> None:
        from trustclip.report.console import explain as paragraphs

        console = Terminal(width=min(Terminal().width, 100), highlight=False)
        for paragraph in paragraphs(self.run):
            console.print(paragraph, markup=False)
