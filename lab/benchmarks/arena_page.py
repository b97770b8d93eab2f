"""The arena's page: leaderboard, contrasts, profiles, tuning curves, tasks, collapses, cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import arena_figures as figures
import arena_tables as tables
from arena_analysis import (
    ALL,
    MARGIN,
    Answer,
    Runs,
    answers,
    answers_by,
    standings,
)
from arena_entry import Entry
from arena_tuning import sensitivities

from trustclip.findings.finding import Finding
from trustclip.report.collect import Section
from trustclip.report.draw.figures import save
from trustclip.report.tables import Table, markdown
from trustclip.support.text import bracket, percent
from trustclip_lab.pages import Contents, sections_page


def contents(entry: Entry, links: Mapping[str, str]) -> Contents:
    """The page of a table.

    Args:
      entry: runs of all stages and designs, with their plan.
      links: constraint -> address of the page about its method.

    Raises:
      ValueError: no setting of the main design is complete.
    """
    main, trials = entry.main, entry.trials
    if not len(main):
        raise ValueError(
            "no setting of the table is complete: a task at a depth, all constraints and seeds."
        )
    context = PageContext(entry, dict(zip(entry.settings.constraints, count())), links)
    by_scope = answers_by("depth", main, entry.questions)
    some = bool(by_scope[ALL])
    contrasts = Section(
        "contrasts",
        "Contrasts",
        [figures.contrasts_figure(by_scope)] if some else [],
        _contrast_tables(by_scope, main, entry) if some else [],
    )
    return Contents(
        headline=headline(by_scope[ALL]),
        subject=_subject(main),
        findings=[Finding("contrast", "note", sentence(answer)) for answer in by_scope[ALL]],
        sections=[
            _scores(context, main, "", ""),
            contrasts,
            _tuning(context, trials),
            *_whole(context, main, trials),
            *_axes(context),
        ],
        series=context.series,
    )


def _contrast_tables(
    by_scope: Mapping[str, Sequence[Answer]], main: Runs, entry: Entry
) -> list[Table]:
    entropy = tables.entropy_table(main, entry.questions)
    count = entry.settings.tuning.count
    chosen = tables.choice_table(entry.choices, count) if entry.choices else None
    by_task = answers_by("task", main, entry.questions)
    by_task = {name.removeprefix("task "): own for name, own in by_task.items() if name != ALL}
    candidates = [
        tables.contrast_table(by_scope),
        tables.settings_table(by_scope[ALL]) if len(main.cells) > 1 else None,
        tables.tasks_table(by_task, entry.choices_by_task) if len(by_task) > 1 else None,
        chosen,
        entropy,
    ]
    return [table for table in candidates if table is not None]


@dataclass(frozen=True)
class PageContext:
    """What all sections share.

    Args:
      entry: runs with their plan.
      series: constraint -> number of its colour.
      links: constraint -> address of the page about its method.
    """

    entry: Entry
    series: Mapping[str, int]
    links: Mapping[str, str]

    @property
    def reference(self) -> str:
        """The constraint that the others are compared with."""
        return self.entry.settings.against


def _scores(context: PageContext, runs: Runs, title: str, key: str) -> Section:
    """Leaderboard and negative controls of one design."""
    board = standings(runs, context.reference)
    controls = tables.control_table(runs, context.entry.controls, title)
    table = tables.leaderboard(board, context.reference, context.series, context.links, title)
    figure = figures.scores_figure(board, context.series, title, key)
    section_tables = [table] if controls is None else [table, controls]
    return Section(f"scores{key}", f"Scores{title}", [figure], section_tables)


def _whole(context: PageContext, runs: Runs, trials: Runs) -> list[Section]:
    """Profiles, tasks and collapses of the main design."""
    series = context.series
    collapses = figures.collapse_figure(runs, series)
    chosen = tables.chosen_table(runs, trials, series)
    return [
        Section("profiles", "Profiles", [figures.profiles_figure(runs, series)]),
        Section("tasks", "Tasks", [], [tables.task_table(runs, series), chosen]),
        Section("collapse", "Collapses", [collapses], [tables.collapse_table(runs, series)]),
    ]


def _axes(context: PageContext) -> list[Section]:
    """Scores of every further design, with the contrasts described."""
    sections = []
    for label, axis in context.entry.settings.axes.items():
        runs = context.entry.runs.where(stage="test", design=label)
        if context.reference in runs.values("constraint"):
            title = f": {label}"
            contrasts = answers(runs, context.entry.questions, f"{axis.task}, depth {axis.depth}")
            scores = _scores(context, runs, title, f"-{label}")
            extra = [tables.described_table(contrasts, title)] if contrasts else []
            sections.append(replace(scores, tables=[*scores.tables, *extra]))
    return sections


def _tuning(context: PageContext, trials: Runs) -> Section:
    series, reference = context.series, context.reference
    sensitive = sensitivities(trials, reference)
    copies = {control.theirs for control in context.entry.controls}
    once = trials.where(constraint=[n for n in trials.constraints if n not in copies])
    candidates = [
        tables.width_table(once, series),
        tables.equal_table(trials, context.entry.questions),
        tables.sensitivity_table(sensitive, reference, series),
    ]
    return Section(
        "tuning",
        "Width and tuning",
        [
            *figures.tuning_figures(trials, series),
            figures.sensitivity_figure(sensitive, reference, series),
        ],
        [table for table in candidates if table is not None],
    )


def headline(contrasts: Sequence[Answer]) -> str:
    """How many contrasts have which conclusion."""
    words = [answer.contrast.conclusion for answer in contrasts]
    unlike = sum(not answer.one_number for answer in contrasts)
    differ = sum(word in ("larger", "smaller") for word in words)
    same, unknown = words.count("equivalent"), words.count("inconclusive")
    return (
        f"Of {len(words)} contrasts fixed beforehand: {differ} different, {same} equivalent "
        f"within {100 * MARGIN:g} point, {unknown} neither, in the mean of all settings. "
        f"{'All' if unlike == len(words) else unlike} of them differ between settings."
    )


def sentence(answer: Answer) -> str:
    """A contrast in words."""
    one, q = answer.contrast, answer.question
    gap = one.difference
    asks = q.asks[:1].upper() + q.asks[1:]
    return (
        f"{asks}: {q.ours} minus {q.theirs} is {percent(gap.value)} points "
        f"{bracket(gap.low, gap.high)}, {tables.in_words(answer)}"
        + (f" (p = {one.p_holm:.2g})" if one.conclusion in ("larger", "smaller") else "")
        + _by_setting(answer)
    )


def _by_setting(answer: Answer) -> str:
    """The settings with the least and the largest difference, where they are not the same."""
    if answer.one_number:
        return "."
    ends = sorted(answer.settings.items(), key=lambda one: one[1].mean)
    least, most = (
        f"{percent(gap.mean)} in {cell[0]} at depth {cell[1]}" for cell, gap in (ends[0], ends[-1])
    )
    p = tables.chance(answer.heterogeneity.p)
    return f"; by setting from {least} to {most} (Cochran's Q, p = {p})."


def _subject(runs: Runs) -> str:
    parts = [
        f"{len(runs.values('constraint'))} constraints",
        f"{len(runs.values('task'))} tasks",
        f"{len(runs.values('seed'))} seeds",
        f"{len(runs)} test runs",
    ]
    return " · ".join(parts)


def write_page(page: Contents, path: Path, title: str = "Arena of constraints") -> Path:
    """Write the page as one HTML file, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sections_page(page, title), encoding="utf-8")
    return path


def write_figures(page: Contents, folder: Path) -> list[Path]:
    """Write every figure as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for section in page.sections:
        for figure in section.figures:
            pdf, svg = save(figure, folder)
            pdf.unlink()
            paths.append(svg)
    return paths


def tables_text(page: Contents) -> str:
    """Every table in Markdown, under the title of its section."""
    parts = []
    for section in page.sections:
        if section.tables:
            parts += [f"## {section.title}\n", *map(markdown, section.tables)]
    return "\n".join(parts)
