"""What a report says, gathered: groups, tables, figures and findings of run directories."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from trustclip.report import curves, plots, published, results, swept, verdict
from trustclip.report.comparison import Compared, compare
from trustclip.report.groups import Group, by_setting, group_runs
from trustclip.report.marks import Figure
from trustclip.report.runs import find, read_run
from trustclip.report.tables import Table

Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    """Everything a report says.

    Args:
      groups: the runs.
      compared: groups against the reference of their setting, by Mean@K.
      headline: the one sentence to remember.
      findings: the sentences under it.
      tables: scores, seeds, comparisons.
      paper: the paper's own tables, where nothing stands beside these runs'.
      intervals: ratio intervals of the methods.
      scores: figure of final scores.
      constraint: Figure 1.
      training: Figure 2, one a setting.
      sweeps: Figure 3, one a hyper-parameter; and methods over a setting that their suite sweeps.
      budgets: Figure 4, one a setting.
      gates: what the gate did.
    """

    groups: list[Group]
    compared: list[Compared]
    headline: str
    findings: list[verdict.Finding]
    tables: list[Table]
    paper: list[Table]
    intervals: list[Table]
    scores: list[Figure]
    constraint: list[Figure]
    training: list[Figure]
    sweeps: list[Figure]
    budgets: list[Figure]
    gates: list[Figure]

    @property
    def figures(self) -> list[Figure]:
        """All figures."""
        return [
            *self.scores, *self.constraint, *self.training, *self.sweeps, *self.budgets,
            *self.gates,
        ]  # fmt: skip

    @property
    def subject(self) -> str:
        """What the report is about, in a line."""
        runs = [run for group in self.groups for run in group.runs]
        parts = [
            _many(len({g.label for g in self.groups}), "method")
            if all(r.method for r in runs)
            else _many(len(self.groups), "group"),
            _many(len(runs), "run"),
            ", ".join(dict.fromkeys(run.model for run in runs)),
            ", ".join(published.TASKS.get(t, t) for t in results.tasks_of(self.groups)),
            _many(max(run.last_step for run in runs), "update"),
        ]
        return " · ".join(part for part in parts if part)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}" if count else ""


def collect(paths: Sequence[Path], reference: str | None = None) -> Report:
    """Read run directories and draw everything from them.

    Args:
      paths: run directories, and suites for all of theirs.
      reference: label of the method that the others are compared with; the suite's own, or the
        first, when None.

    Raises:
      ValueError: no path, or one that is no run directory.
    """
    folders = list(dict.fromkeys(path for path in find(paths)))
    if not folders:
        raise ValueError("a report needs at least one run directory.")
    groups = group_runs([read_run(folder) for folder in folders], reference)
    by_mean, by_pass = compare(groups, "mean"), compare(groups, "pass")
    tables = [results.single_table(groups)] if results.columns(groups) else []
    tables += _some(
        results.repeated_table(groups),
        results.comparison_table(by_mean, "mean-differences"),
        results.comparison_table(by_pass, "pass-differences"),
    )
    beside = any(row.kind == "paper" for table in tables for row in table.rows)
    return Report(
        groups=groups,
        compared=by_mean,
        headline=verdict.headline(groups, by_mean),
        findings=verdict.findings(groups, by_mean),
        tables=tables,
        paper=[] if beside else results.printed_tables(),
        intervals=_some(results.interval_table(groups)),
        scores=_some(plots.forest_figure(groups, by_mean)),
        constraint=_some(plots.constraint_figure(groups)),
        training=_for_each(groups, curves.training_figure),
        sweeps=[*swept.swept_figures(groups, by_mean), *plots.sweep_figures(groups)],
        budgets=_for_each(groups, plots.budget_figure),
        gates=[
            *_for_each(groups, curves.gate_figure),
            *_some(curves.quadrant_figure(groups), curves.ratio_figure(groups)),
            *_for_each(groups, curves.bucket_figure),
        ],
    )


def _for_each(
    groups: Sequence[Group], draw: Callable[[Sequence[Group], str], Figure | None]
) -> list[Figure]:
    """A figure for each setting, named and numbered where there are several."""
    settings = by_setting(groups)
    if len(settings) == 1:
        return _some(draw(groups, ""))
    drawn = [
        (setting, draw(here, f"-{number}"))
        for number, (setting, here) in enumerate(settings.items(), start=1)
    ]
    return [replace(f, title=f"{f.title}: {setting}") for setting, f in drawn if f is not None]


def _some(*found: Item | None) -> list[Item]:
    return [item for item in found if item is not None]
