"""The contents of a report: groups, tables, figures and findings of run directories."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from trustclip.findings import differences
from trustclip.findings.comparison import Compared, compare
from trustclip.findings.finding import Finding
from trustclip.findings.groups import Group, by_setting, group_runs
from trustclip.findings.learning import learning, threshold
from trustclip.logs.choice import Choice
from trustclip.logs.score_files import read_all
from trustclip.report import results
from trustclip.report.draw import curves, mismatch, plots, swept
from trustclip.report.draw.marks import Figure
from trustclip.report.tables import Table
from trustclip.support.text import plural

Item = TypeVar("Item")


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    key: str
    title: str
    figures: list[Figure]
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Args:
      compared: groups against the reference of their setting, by Mean@K.
    """

    groups: list[Group]
    compared: list[Compared]
    headline: str
    findings: list[Finding]
    by_run: list[differences.RunFindings]
    sections: list[Section]

    def __getitem__(self, key: str) -> Section:
        return next(section for section in self.sections if section.key == key)

    @property
    def tables(self) -> list[Table]:
        """Tables of all sections."""
        return [table for section in self.sections for table in section.tables]

    @property
    def figures(self) -> list[Figure]:
        """Figures of all sections."""
        return [figure for section in self.sections for figure in section.figures]

    @property
    def subject(self) -> str:
        """Methods, runs, models and benchmarks of the report, in one line."""
        runs = [run for group in self.groups for run in group.runs]
        last = max((run.last_step for run in runs if run.log is None), default=0)
        parts = [
            plural(len({g.label for g in self.groups}), "method")
            if all(r.method for r in runs)
            else plural(len(self.groups), "group"),
            plural(len(runs), "run"),
            ", ".join(dict.fromkeys(run.model for run in runs)),
            ", ".join(results.TITLES.get(t, t) for t in results.tasks_of(self.groups)),
            plural(last, "update") if last else "",
        ]
        return " · ".join(dict.fromkeys(part for part in parts if part))


def collect(
    paths: Sequence[Path], reaches: float | None = None, choice: Choice | None = None
) -> Report:
    """Read run directories, or scores of other programs, and make the contents of their report.

    Raises:
      ValueError: no path, or one that is not a run directory.
    """
    if not paths:
        raise ValueError("a report needs at least one run directory.")
    runs = read_all(paths, choice or Choice())
    groups = group_runs(runs)
    by_mean, by_pass = compare(groups, "mean"), compare(groups, "pass")
    tables = _some(
        results.single_table(groups),
        results.repeated_table(groups),
        results.comparison_table(by_mean, "mean-differences"),
        results.comparison_table(by_pass, "pass-differences"),
    )
    gate = [
        *_for_each(groups, curves.gate_figure),
        *_some(curves.quadrant_figure(groups), curves.ratio_figure(groups)),
        *_for_each(groups, curves.bucket_figure),
    ]
    policies = [
        *_for_each(groups, mismatch.distance_figure),
        *_some(mismatch.quantile_figure(groups)),
        *_for_each(groups, mismatch.drift_figure),
    ]
    training = [
        *_for_each(groups, curves.training_figure),
        *_for_each(groups, curves.rewards_figure),
    ]
    sweeps = [*swept.swept_figures(groups, by_mean), *swept.sweep_figures(groups)]
    reaches = threshold(groups, reaches)
    ways = learning(groups, reaches)
    learned = _some(results.learning_table(groups, ways, reaches))
    by_run = differences.findings_by_run(groups)
    return Report(
        groups=groups,
        compared=by_mean,
        headline=differences.headline(
            groups, by_mean, differences.differing(groups, by_pass, ways)
        ),
        findings=differences.of_groups(groups, by_mean, by_run),
        by_run=by_run,
        sections=[
            Section("scores", "Scores", _some(plots.forest_figure(groups, by_mean)), tables),
            Section("constraint", "Constraint", _some(plots.constraint_figure(groups))),
            Section("training", "Training", training, learned),
            Section("sweep", "Sweep", sweeps),
            Section("budget", "Samples and K", _for_each(groups, plots.budget_figure)),
            Section("gate", "Gate", gate),
            Section("sampler", "Sampler", policies),
            Section("shadows", "Shadows", [], results.shadow_tables(groups)),
        ],
    )


def _for_each(
    groups: Sequence[Group], draw: Callable[[Sequence[Group]], Figure | None]
) -> list[Figure]:
    """A figure for each setting, named and numbered where there are several."""
    settings = by_setting(groups)
    if len(settings) == 1:
        return _some(draw(groups))
    return [
        replace(figure, key=f"{figure.key}-{number}", title=f"{figure.title}: {setting}")
        for number, (setting, here) in enumerate(settings.items(), start=1)
        if (figure := draw(here)) is not None
    ]


def _some(*items: Item | None) -> list[Item]:
    return [item for item in items if item is not None]
