"""The table of a suite: scores and differences of its methods, as JSON, Markdown and on a terminal.

Runs are read, pooled and compared as in a report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from trustclip.findings.comparison import Compared, compare
from trustclip.findings.conditions import unlike_settings
from trustclip.findings.evaluated import mean_of
from trustclip.findings.groups import Estimate, Group, group_runs, pooled
from trustclip.findings.learning import Learning, learning, threshold
from trustclip.findings.rows import values
from trustclip.logs.reader import Evaluation, Run, read_run
from trustclip.logs.samples import Samples
from trustclip.report.learning import learning_table
from trustclip.report.tables import NOTHING, Cell, Table, TableRow
from trustclip.report.tables import markdown as written
from trustclip.support.jsonl import write_json, write_text
from trustclip.support.text import bracket, percent
from trustclip.train.suite.plan import Job, Plan

Row = Mapping[str, Any]
Metrics = tuple[str, str]


class Results:
    """The finished runs of a suite and their results."""

    def __init__(self, suite: Plan, command: str) -> None:
        self._plan, self._command = suite, command
        self._runs: dict[tuple[str, str], list[Run]] = {}

    def add(self, job: Job) -> None:
        entry = {
            "label": job.label, "model": job.model, "seed": job.seed, "swept": dict(job.swept)
        }  # fmt: skip
        # The locations of completions are not needed here, and take memory for many runs.
        run = replace(read_run(job.path), entry=entry, samples=Samples())
        self._runs.setdefault((job.setting, job.label), []).append(run)

    def write(self) -> Path:
        """Write ``table.json`` and ``table.md``; returns the latter."""
        table = self.table()
        write_json(self._plan.out / "table.json", table)
        path = self._plan.out / "table.md"
        write_text(path, markdown(table))
        return path

    def table(self) -> dict[str, Any]:
        """The content of ``table.json``.

        Returns:
          ``rows``, one for each setting (a model, and swept values) and label: ``final`` and
          ``best`` scores and, by task, final ones (``mean@K`` and ``pass@K``, each ``value``,
          ``low``, ``high``; shares of 1), ``gated`` (share of tokens), ``learning`` (the fields of
          `trustclip.report.learning.Learning`), and ``difference`` to the reference of the setting
          by metric with ``p``, ``p_holm`` (over all labels and settings) and ``verdict``.
          ``before``: scores in each setting before training. The other keys are those of the
          caption.
        """
        reference, runs = self._plan.reference, self._runs
        models = {job.setting: job.model for job in self._plan.runs}
        groups = [
            Group(label, model, setting, runs.get((setting, label), []), 0, label == reference)
            for setting, model in models.items()
            for label in self._plan.methods
        ]
        settings = [job.settings for job in self._plan.runs]
        about = {
            "name": self._plan.settings.name,
            "command": self._command,
            "reference": reference,
            "reaches": self._plan.settings.reaches,
            "seeds": list(self._plan.settings.seeds),
            **_budgets(settings),
        }
        methods = {label: method.to_dict() for label, method in self._plan.methods.items()}
        return _content(about, groups, methods)


def remade(runs: Sequence[Run], command: str, reaches: float | None = None) -> dict[str, Any]:
    """The content of ``table.json`` again, from all finished runs of a suite."""
    groups, entry = group_runs(runs), runs[0].entry
    about = {
        "name": entry["suite"],
        "command": command,
        "reference": entry["reference"],
        "reaches": threshold(groups, reaches),
        "seeds": sorted({run.seed for run in runs}),
        **_budgets([run.config for run in runs]),
    }
    return _content(about, groups, {group.label: group.runs[0].method for group in groups})


def _budgets(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Updates of the runs, and samples of each problem."""
    return {
        "steps": sorted({run["rl"]["max_steps"] for run in settings}),
        "k": sorted({run["eval"]["k"] for run in settings if run["eval"]}),
    }


def _content(
    about: Mapping[str, Any], groups: Sequence[Group], methods: Mapping[str, Any]
) -> dict[str, Any]:
    compared = [one for kind in ("mean", "pass") for one in compare(groups, kind)]
    ways = learning(groups, about["reaches"])
    return {
        **about,
        "unlike": [f.sentence for f in unlike_settings([group for group in groups if group.runs])],
        "problems": _problems(groups),
        "before": {
            g.setting: _scores(g, g.evaluations("initial")) for g in groups if g.is_reference
        },
        "rows": [
            _row(group, methods[group.label], way, [c for c in compared if c.group is group])
            for group, way in zip(groups, ways, strict=True)
        ],
    }


def _row(
    group: Group,
    method: Mapping[str, Any],
    way: Learning | None,
    compared: Sequence[Compared],
) -> dict[str, Any]:
    final = group.evaluations("final")
    # The best evaluation of a run is the one with the highest Mean@K after training began.
    best = [max(run.trained, key=mean_of) for run in group.runs if run.trained]
    gated = [_mean(values(run.training, "gated")) for run in group.runs]
    return {
        "setting": group.setting,
        "model": group.model,
        "label": group.label,
        "method": method,
        "seeds": sorted(group.seeds),
        "final": _final(group),
        "best": _scores(group, best),
        "tasks": {task: _final(group, task) for task in (final[0].tasks if final else ())},
        "gated": _mean([share for share in gated if share is not None]),
        "learning": None if way is None else vars(way),
        "difference": {one.metric: _difference(one) for one in compared},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _scores(group: Group, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    return _intervals({metric: pooled(evaluations, None, metric) for metric in group.metrics})


def _final(group: Group, task: str | None = None) -> dict[str, Any]:
    return _intervals({metric: group.estimate(task, metric) for metric in group.metrics})


def _intervals(estimates: Mapping[str, Estimate | None]) -> dict[str, Any]:
    return {
        metric: {"value": e.value, "low": e.low, "high": e.high}
        for metric, e in estimates.items()
        if e is not None
    }


def _difference(compared: Compared) -> dict[str, Any]:
    numbers = {} if compared.difference is None else vars(compared.difference)
    return {**numbers, "p_holm": compared.p_holm, "seeds": compared.seeds,
            "same_seeds": compared.same_seeds, "verdict": compared.verdict}  # fmt: skip


def _problems(groups: Sequence[Group]) -> dict[str, int]:
    """Number of problems by task."""
    evaluation = next((e for group in groups for e in group.evaluations("final")), None)
    if evaluation is None:
        return {}
    return {task: scores.get("problems", 0) for task, scores in evaluation.scores["tasks"].items()}


def markdown(table: Mapping[str, Any]) -> str:
    """`Results.table` in Markdown: scores, differences, the way there, and several benchmarks."""
    k = table["k"][0] if len(table["k"]) == 1 else "K"
    metrics = f"Mean@{k}", f"Pass@{k}"
    tables = [_scores_table(table, metrics), _differences_table(table, metrics)]
    if (ways := _learning_table(table)) is not None:
        tables.append(ways)
    if len(table["problems"]) > 1:
        tables.append(_benchmarks_table(table, metrics))
    parts = [f"# {table['name']}\n", _caption(table, metrics), *map(written, tables)]
    return "\n".join(parts)


def overview(table: Mapping[str, Any]) -> Grid:
    """Final Mean@K and its difference from the reference, for a terminal."""
    grid = Grid(box=None, pad_edge=False)
    for header in ("method", "runs", "Mean@K %", f"minus {table['reference']}", "p (Holm)", ""):
        grid.add_column(header, overflow="fold")
    for setting, section in _sections(table):
        for one in section:
            grid.add_row(Text(one.label, "bold"))
        for row in _rows(table, setting):
            difference = next(iter(row["difference"].values()), None)
            gap = _difference_cells(difference) if difference else [NOTHING, NOTHING, Cell("")]
            cells = [_pair(row["final"])[0], *gap]
            runs = f"{len(row['seeds'])}/{len(table['seeds'])}"
            grid.add_row(row["label"], runs, *(Text(f"{c.text} {c.note}") for c in cells))
    return grid


def _caption(table: Mapping[str, Any], metrics: Metrics) -> str:
    problems = table["problems"]
    named = " + ".join(f"{count} {task}" for task, count in problems.items())
    average = ", macro-averaged over the benchmarks" if len(problems) > 1 else ""
    return (
        f"Generated by `{table['command']}`. {_join(table['steps'])} updates per run; seeds "
        f"{_join(table['seeds'])}. {' and '.join(metrics)} in percent{average}: K = "
        f"{_join(table['k'])} samples of each of {sum(problems.values())} problems "
        f"({named or 'none'}), with 95 % intervals over problems and, with two runs or more, "
        "training seeds.\n"
    )


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "no"


def _scores_table(table: Mapping[str, Any], metrics: Metrics) -> Table:
    rows = []
    for setting, section in _sections(table):
        rows += section
        if before := table["before"][setting]:
            rows.append(TableRow("before training", [*_pair(before), *[NOTHING] * 3], "base"))
        for row in _rows(table, setting):
            gated = NOTHING if row["gated"] is None else Cell(f"{row['gated']:.2%}")
            cells = [*_pair(row["final"]), *_pair(row["best"]), gated]
            runs = f"{len(row['seeds'])} of {len(table['seeds'])} runs"
            rows.append(TableRow(row["label"], cells, note=runs))
    head = [("final", list(metrics)), ("best", list(metrics)), ("", ["gated"])]
    notes = [
        f"Best is the evaluation with the highest {metrics[0]} of a run; it is selected on the "
        "test problems, so it is too high and not a basis for comparisons. Gated is the share of "
        "tokens whose gradient the constraint cut, mean over training."
    ]
    return Table("scores", "Scores", "method", head, rows, notes)


def _differences_table(table: Mapping[str, Any], metrics: Metrics) -> Table:
    rows = []
    for setting, section in _sections(table):
        rows += section
        for row in _rows(table, setting):
            differences = list(row["difference"].values())
            empty = "reference" if row["label"] == table["reference"] else "no runs to compare yet"
            cells = [cell for one in differences for cell in _difference_cells(one)]
            cells = cells or [NOTHING, NOTHING, Cell(empty)] * 2
            rows.append(TableRow(row["label"], cells))
    head = [(metric, ["points", "p (Holm)", "verdict"]) for metric in metrics]
    title = f"Final evaluation against {table['reference']}"
    notes = [_differences_note(table), *table["unlike"]]
    return Table("differences", title, "method", head, rows, notes, wide=True)


def _difference_cells(difference: Row) -> list[Cell]:
    if "value" not in difference:
        return [NOTHING, NOTHING, Cell(difference["verdict"])]
    p = "-" if isnan(difference["p_holm"]) else f"{difference['p_holm']:.4f}"
    points = Cell(percent(difference["value"]), bracket(difference["low"], difference["high"]))
    return [points, Cell(p), Cell(difference["verdict"])]


def _differences_note(table: Mapping[str, Any]) -> str:
    compared = [
        one for row in table["rows"] for one in row["difference"].values() if "value" in one
    ]
    number = len(compared) // 2
    unpaired = [one for one in compared if not one["same_seeds"]]
    note = (
        "Paired by problem, over the seeds that both have finished"
        f"{'; methods without a common seed as independent runs' if unpaired else ''}; p is "
        "corrected for "
        f"{number} comparison{'s' * (number != 1)} of each metric (Holm). An inconclusive "
        "difference is not evidence of equality."
    )
    if any(difference["seeds"] == 1 for difference in compared):
        note += (
            " Methods with one run each are not compared by it: no method can be called better, "
            "because the intervals and p-values leave out how much training runs differ."
        )
    return note


def _learning_table(table: Mapping[str, Any]) -> Table | None:
    labels: list[TableRow] = []
    ways: list[Learning | None] = []
    for setting, section in _sections(table):
        pairs = [(row["label"], row["learning"]) for row in _rows(table, setting)]
        labels += [*section, *(TableRow(label) for label, _ in pairs)]
        ways += [None] * len(section)
        ways += [None if way is None else Learning(**way) for _, way in pairs]
    return learning_table(labels, ways, table["reaches"])


def _benchmarks_table(table: Mapping[str, Any], metrics: Metrics) -> Table:
    tasks = list(table["problems"])
    rows = []
    for setting, section in _sections(table):
        rows += section
        for row in _rows(table, setting):
            cells = [cell for task in tasks for cell in _pair(row["tasks"].get(task, {}))]
            rows.append(TableRow(row["label"], cells))
    head = [(task, list(metrics)) for task in tasks]
    return Table("benchmarks", "Final evaluation by benchmark", "method", head, rows)


def _sections(table: Mapping[str, Any]) -> Iterator[tuple[str, list[TableRow]]]:
    """Every setting, with a row that names it if there are several."""
    for setting in table["before"]:
        yield setting, [TableRow(setting, kind="section")] if len(table["before"]) > 1 else []


def _rows(table: Mapping[str, Any], setting: str) -> list[Row]:
    return [row for row in table["rows"] if row["setting"] == setting]


def _pair(scores: Row) -> list[Cell]:
    """Mean@K and Pass@K with their intervals."""
    cells = [Cell(percent(s["value"]), bracket(s["low"], s["high"])) for s in scores.values()]
    return cells or [NOTHING, NOTHING]
