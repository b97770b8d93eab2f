"""The tables of a report: scores of every group, differences, learning curves, and shadows."""

import math
from collections.abc import Sequence

from trustclip.findings.comparison import Compared, significant
from trustclip.findings.facts import LEFT
from trustclip.findings.groups import Estimate, Group, by_setting, names, units
from trustclip.findings.learning import Learning
from trustclip.findings.shadows import Matrix, matrix, mean_metrics
from trustclip.report.tables import NOTHING, Cell, Table, TableRow
from trustclip.stats import Difference, Interval
from trustclip.support.text import bracket, percent, plural, signed, title_of

#: Headings of benchmarks, by the name of their task.
TITLES = {"amc23": "AMC2023", "aime24": "AIME2024", "aime25": "AIME2025"}
#: A column of scores: task (None for the average) and metric, such as ``"mean@8"``.
Column = tuple[str | None, str]


def columns(groups: Sequence[Group]) -> list[Column]:
    """Columns of a table of scores: every task of any group, and the average over all of them."""
    evaluated = [group for group in groups if group.metrics]
    metrics = sorted(
        dict.fromkeys(m for group in evaluated for m in group.metrics),
        key=lambda name: (int(name.partition("@")[2]), name),
    )
    tasks: list[str | None] = list(tasks_of(evaluated))
    return [(task, m) for task in ([*tasks, None] if len(tasks) != 1 else tasks) for m in metrics]


def tasks_of(groups: Sequence[Group]) -> list[str]:
    """Tasks of any group, in order of appearance."""
    evaluations = [e for group in groups for run in group.runs for e in run.evaluations]
    return list(dict.fromkeys(task for e in evaluations for task in e.tasks))


def estimate(group: Group, column: Column, moment: str, tasks: Sequence[str]) -> Estimate | None:
    """Score of a cell; the average only for a group that has every task."""
    task, metric = column
    complete = all(set(e.tasks) >= set(tasks) for e in group.evaluations(moment))
    return group.estimate(task, metric, moment) if task is not None or complete else None


def single_table(groups: Sequence[Group]) -> Table | None:
    """Scores before training, at the end and at best: the paper's Table 2 for these runs."""
    cols, tasks = columns(groups), tasks_of(groups)
    if not cols:
        return None
    rows: list[TableRow] = []
    settings = by_setting(groups)
    for setting, here in settings.items():
        rows += [TableRow(setting, kind="section")] if len(settings) > 1 else []
        initial = [[estimate(group, col, "initial", tasks) for col in cols] for group in here]
        # Runs of one seed begin alike: the first group with scores represents them all.
        if base := next(filter(any, initial), None):
            cells = [_single_cell(e, False) for e in base]
            rows.append(TableRow("before training", cells, "base"))
        finals = [[estimate(group, col, "final", tasks) for col in cols] for group in here]
        highest = [
            max((e.value for e in column if e), default=0.0) for column in zip(*finals, strict=True)
        ]
        several = len(here) > 1 and not any(map(_one_training, here))
        for group, estimates in zip(here, finals, strict=True):
            cells = [
                _single_cell(e, several and e is not None and e.value == top)
                for e, top in zip(estimates, highest, strict=True)
            ]
            rows.append(TableRow(group.label, cells, "ours", _standing(group), group.series))
    by = units(groups, seeds=any(len(group.scored) > 1 for group in groups))
    notes = [f"Brackets hold 95 % intervals, clustered by {by}."]
    if any(cell.text.endswith(")") for row in rows if row.kind == "ours" for cell in row.cells):
        notes.append(
            "Parentheses hold the best evaluation of each column, selected on the test problems as "
            "in the paper. It is optimistic and not a basis for comparisons."
        )
    if any(cell.strong for row in rows for cell in row.cells):
        notes.append("The highest value of a column is bold; the differences are tested below.")
    if len(groups) > 1 and all(map(_one_training, groups)):
        notes.append(
            "There is one run of each method: none can be called better, because the intervals "
            "leave out how much training runs differ."
        )
    return Table("scores", f"Scores in {groups[0].scale}", "method", head_of(cols), rows, notes)


def _one_training(group: Group) -> bool:
    return group.runs[0].method is not None and len(group.scored) == 1


def _single_cell(score: Estimate | None, strong: bool) -> Cell:
    if score is None:
        return NOTHING
    best = f" ({percent(score.best, 2)})" if score.best is not None else ""
    return Cell(percent(score.value, 2) + best, bracket(score.low, score.high), strong)


def _standing(group: Group) -> str:
    seeds = len(group.scored)
    many = f"{seeds} seeds" if seeds > 1 else ""
    lost = f"{group.lost} answers lost" if group.lost else ""
    return ", ".join(part for part in (many, group.partial, lost) if part)


def head_of(cols: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Headings of columns: task over metrics."""
    head: dict[str, list[str]] = {}
    for task, metric in cols:
        over = "Average" if task is None else TITLES.get(task, task)
        head.setdefault(over, []).append(title_of(metric))
    return list(head.items())


def repeated_table(groups: Sequence[Group]) -> Table | None:
    """Mean and standard deviation over seeds at the end: the paper's Table 3 for these runs."""
    if not any(len(group.scored) > 1 for group in groups):
        return None
    cols, tasks = columns(groups), tasks_of(groups)
    rows: list[TableRow] = []
    for label, group in zip(names(groups), groups, strict=True):
        if len(group.scored) < 2:
            continue
        scores = [estimate(group, col, "final", tasks) for col in cols]
        cells = [
            NOTHING if e is None else Cell(f"{percent(e.value, 2)} ± {percent(e.std, 2)}")
            for e in scores
        ]
        rows.append(TableRow(label, cells, "ours", f"{len(group.scored)} seeds", group.series))
    notes = ["Cells are mean ± sample standard deviation (divisor n − 1) over seeds."]
    title = f"Final scores over seeds, in {groups[0].scale}"
    return Table("seeds", title, "method", head_of(cols), rows, notes)


def comparison_table(compared: Sequence[Compared], key: str) -> Table | None:
    """Differences to the reference, with intervals, corrected p-values and verdicts."""
    if not compared:
        return None
    metric = next((c.metric for c in compared if c.difference is not None), compared[0].metric)
    rows = []
    for c in compared:
        d = c.difference
        numbers = [NOTHING] * 4
        if d is not None:
            bounds = f"[{signed(d.low)}, {signed(d.high)}]" if d.low == d.low else ""
            numbers = [
                Cell(signed(d.value), bounds),
                Cell(p_text(d.p)),
                Cell(p_text(c.p_holm), strong=c.resolved),
                Cell(percent(c.detectable)) if c.detectable < math.inf else NOTHING,
            ]
        parts = [f"{c.seeds} seeds"] if c.seeds > 1 else []
        parts += [f"at update {c.step}"] if c.step is not None else []
        note = ", ".join(parts)
        rows.append(TableRow(c.name, [*numbers, Cell(c.verdict)], "ours", note, c.group.series))
    seeds = any(c.same_seeds and c.seeds > 1 for c in compared)
    by = units([c.group for c in compared], seeds=seeds)
    family = len([c for c in compared if c.difference is not None and c.p_holm == c.p_holm])
    notes = [f"Final evaluations are paired by {by}."] if by else []
    notes.append(f"Holm's correction counts {plural(family, 'comparison')}.")
    if any(c.detectable < math.inf for c in compared):
        notes.append("Detectable is the gap (points) that these runs find in 4 of 5 cases.")
    if any(c.step is not None for c in compared):
        notes.append(
            "Unfinished runs are compared at the last update at which both were evaluated."
        )
    title = f"{title_of(metric)} against {compared[0].reference.label}, points"
    head = [("", ["difference", "p", "p (Holm)", "detectable", "verdict"])]
    return Table(key, title, "method", head, rows, notes, wide=True)


def p_text(p: float | None) -> str:
    """A p-value with three digits.

    Example:
      >>> p_text(0.0412), p_text(0.0002), p_text(None)
      ('0.041', '< 0.001', '-')
    """
    return "-" if p is None or p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def learning_table(
    groups: Sequence[Group], curves: Sequence[Learning | None], reaches: float | None
) -> Table | None:
    """A row for each group of a report that has a learning curve; None of a single run."""
    if sum(len(group.runs) for group in groups) < 2 or not any(curves):
        return None
    rows = []
    for name, group, curve in zip(names(groups), groups, curves, strict=True):
        if curve is not None:
            note = f"{len(group.scored)} seeds" if len(group.scored) > 1 else ""
            rows.append(TableRow(name, _learned(curve), note=note, series=group.series))
    head = [("area", ["mean", "difference", "p (Holm)"]), ("", ["collapsed"])]
    notes = [
        "Area is the mean score of a run on its way, in percent: the area under the learning curve "
        "of Mean@K, divided by its length (trapezoidal rule over the updates of all evaluations). "
        "Differences are to the reference, and p is corrected for all of them (Holm). Collapsed "
        f"is the share of runs that ended below {percent(LEFT, 0)} % of their best "
        "evaluation, in percent. Brackets hold 95 % intervals: of areas as of final scores, of "
        "rates Clopper and Pearson's."
    ]
    if reaches is not None:
        head += [(f"to {percent(reaches, 0)} %", ["reached", "updates", "difference", "p (Holm)"])]
        notes.append(
            f"Reached is the share of runs that an evaluation found at {percent(reaches, 0)} % or "
            "more, in percent. Updates are counted until the first such evaluation, or to the end "
            "of a run that never got there (restricted mean); intervals are over seeds, and seeds "
            "are paired in the differences."
        )
    return Table("learning", "Learning curves", "method", head, rows, notes)


def _learned(curve: Learning) -> list[Cell]:
    cells = [_number(curve.area), *_changed(curve.area_minus), _number(curve.collapsed)]
    if curve.reached is not None:
        cells += [_number(curve.reached), _number(curve.time, 0.01)]
        cells += _changed(curve.time_minus, 0.01)
    return cells


def _number(number: Interval | Difference | None, unit: float = 1.0) -> Cell:
    """A number with its interval in percent, in this unit: as it is in one of 0.01."""
    if number is None:
        return NOTHING
    return Cell(percent(number.value * unit), bracket(number.low * unit, number.high * unit))


def _changed(change: Difference | None, unit: float = 1.0) -> list[Cell]:
    if change is None:
        return [NOTHING, NOTHING]
    return [_number(change, unit), Cell(p_text(change.p), strong=significant(change.p))]


def shadow_tables(groups: Sequence[Group]) -> list[Table]:
    """For each group with shadows: what they would have cut."""
    built = []
    for number, group in enumerate(groups):
        rows = [row for run in group.runs for row in run.training]
        overlap = matrix(group.label, mean_metrics(rows))
        if overlap is not None:
            built.append(_measures(overlap, group, number))
    return built


def _measures(overlap: Matrix, group: Group, number: int) -> Table:
    acting = Cell(percent(overlap.gated[0], 2))
    rows = [TableRow(f"1\N{NO-BREAK SPACE}{overlap.names[0]}", [acting, *[NOTHING] * 4],
                     note="acting", series=group.series)]  # fmt: skip
    for i, name in enumerate(overlap.names[1:], start=1):
        cosine = overlap.cosine[0, i]
        cells = [Cell(percent(overlap.gated[i], 2))]
        cells += [Cell(percent(x)) for x in (*overlap.of_acting(i), overlap.jaccard[0, i])]
        cells.append(Cell("-" if math.isnan(cosine) else f"{cosine:.3f}"))
        rows.append(TableRow(f"{i + 1}\N{NO-BREAK SPACE}{name}", cells))
    head = ["cut %", "precision %", "recall %", "Jaccard %", "cosine of updates"]
    note = (
        "Numbers are means over the logged updates. Precision is the share of the shadow's cuts "
        "that the acting method cut, too; recall is the share of the acting method's cuts that the "
        "shadow cuts, too. In a training by a shadow the tokens would have been others."
    )
    title = f"What other methods would have cut in the runs of {group.label}"
    return Table(f"shadows-{number}", title, "method", [("", head)], rows, [note])
