"""The table of a suite: scores and differences of its methods, as JSON, Markdown and on a terminal.

Runs are read, pooled and compared as in a report, whose tables are written here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from trustclip.logs.reader import Run, read_run
from trustclip.logs.samples import Samples
from trustclip.report.learning import table_of
from trustclip.report.results import columns, comparison_table, p_text, single_table
from trustclip.report.tables import markdown
from trustclip.support.jsonl import write_json, write_text
from trustclip.support.text import bracket, percent
from trustclip.train.suite.plan import Job, Plan


@dataclass(frozen=True)
class SuiteTable:
    """Methods of a suite, compared.

    Args:
      about: what the caption says: name, command, reference, seeds, updates, samples.
      groups: one for each setting (a model, and swept values) and label, also without runs.
      methods: by label, with their hyper-parameters.
    """

    about: Mapping[str, Any]
    groups: Sequence[Group]
    methods: Mapping[str, Any]

    @classmethod
    def of(cls, runs: Sequence[Run], command: str, reaches: float | None = None) -> "SuiteTable":
        """The table again, from all finished runs of a suite."""
        groups, entry = group_runs(runs), runs[0].entry
        about = {
            "name": entry["suite"],
            "command": command,
            "reference": entry["reference"],
            "reaches": threshold(groups, reaches),
            "seeds": sorted({run.seed for run in runs}),
            **_budgets([run.config for run in runs]),
        }
        return cls(about, groups, {group.label: group.runs[0].method for group in groups})

    @cached_property
    def compared(self) -> dict[str, list[Compared]]:
        """Differences from the reference, by kind of score."""
        return {kind: compare(self.groups, kind) for kind in ("mean", "pass")}

    @cached_property
    def ways(self) -> list[Learning | None]:
        """How the runs of each group came to their ends."""
        return learning(self.groups, self.about["reaches"])

    @property
    def problems(self) -> dict[str, int]:
        """Number of problems by task."""
        found = next((e for group in self.groups for e in group.evaluations("final")), None)
        tasks = {} if found is None else found.scores["tasks"]
        return {task: scores.get("problems", 0) for task, scores in tasks.items()}

    @property
    def unlike(self) -> list[str]:
        """Sentences about settings in which the methods differ otherwise."""
        return [f.sentence for f in unlike_settings([group for group in self.groups if group.runs])]

    def content(self) -> dict[str, Any]:
        """The content of ``table.json``.

        Returns:
          ``rows``, one for each group: ``final`` and ``best`` scores and, by task, final ones
          (``mean@K`` and ``pass@K``, each ``value``, ``low``, ``high``; shares of 1), ``gated``
          (share of tokens), ``learning`` (the fields of `trustclip.findings.learning.Learning`),
          and ``difference`` to the reference of the setting by metric with ``p``, ``p_holm`` (over
          all labels and settings) and ``verdict``. ``before``: scores in each setting before
          training. The other keys are those of the caption.
        """
        starts = {g.setting: _scores(g, "initial") for g in self.groups if g.is_reference}
        return {
            **self.about,
            "unlike": self.unlike,
            "problems": self.problems,
            "before": starts,
            "rows": [self._row(*pair) for pair in zip(self.groups, self.ways, strict=True)],
        }

    def _row(self, group: Group, way: Learning | None) -> dict[str, Any]:
        final = group.evaluations("final")
        # The best evaluation of a run is the one with the highest Mean@K after training began.
        best = [max(run.trained, key=mean_of) for run in group.runs if run.trained]
        gated = [_mean(values(run.training, "gated")) for run in group.runs]
        own = [c for compared in self.compared.values() for c in compared if c.group is group]
        return {
            "setting": group.setting,
            "model": group.model,
            "label": group.label,
            "method": self.methods[group.label],
            "seeds": sorted(group.seeds),
            "final": _scores(group, "final"),
            "best": _intervals({m: pooled(best, None, m) for m in group.metrics}),
            "tasks": {t: _scores(group, "final", t) for t in (final[0].tasks if final else ())},
            "gated": _mean([share for share in gated if share is not None]),
            "learning": None if way is None else vars(way),
            "difference": {one.metric: _difference(one) for one in own},
        }

    def markdown(self) -> str:
        """The caption, and the report's tables of scores, differences and learning curves."""
        begun = [group for group in self.groups if group.runs]
        ways = [way for group, way in zip(self.groups, self.ways, strict=True) if group.runs]
        tables = [
            single_table(begun) if columns(begun) else None,
            *(comparison_table(c, f"{kind}-differences") for kind, c in self.compared.items()),
            table_of(begun, ways, self.about["reaches"]),
        ]
        texts = [markdown(table) for table in tables if table is not None]
        remarks = [f"{text}\n" for text in [*self._missing(), *self.unlike]]
        return "\n".join([f"# {self.about['name']}\n", self._caption(), *remarks, *texts])

    def _caption(self) -> str:
        about, problems = self.about, self.problems
        named = " + ".join(f"{count} {task}" for task, count in problems.items())
        average = ", macro-averaged over the benchmarks" if len(problems) > 1 else ""
        return (
            f"Generated by `{about['command']}`. {_join(about['steps'])} updates per run; seeds "
            f"{_join(about['seeds'])}. Scores in percent{average}: K = {_join(about['k'])} samples "
            f"of each of {sum(problems.values())} problems ({named or 'none'}).\n"
        )

    def _missing(self) -> list[str]:
        """The sentence about groups of which runs are missing; none where all are finished."""
        seeds = len(self.about["seeds"])
        short = [
            f"{g.label}{f' ({g.setting})' if g.setting != g.model else ''} {len(g.runs)} of {seeds}"
            for g in self.groups
            if len(g.runs) < seeds
        ]
        return [f"Not all runs are finished: {', '.join(short)}."] if short else []

    def overview(self) -> Grid:
        """Final Mean@K and its difference from the reference, for a terminal."""
        grid = Grid(box=None, pad_edge=False)
        heads = ("method", "runs", "Mean@K %", f"minus {self.about['reference']}", "p (Holm)", "")
        for header in heads:
            grid.add_column(header, overflow="fold")
        several = len({group.setting for group in self.groups}) > 1
        gaps = {id(c.group): c for c in self.compared["mean"]}
        for group in self.groups:
            if group.is_reference and several:
                grid.add_row(Text(group.setting, "bold"))
            score = group.estimate(None, group.metrics[0]) if group.metrics else None
            cells = [_text(score)]
            if (gap := gaps.get(id(group))) is not None:
                cells += [_text(gap.difference), p_text(gap.p_holm), gap.verdict]
            runs = f"{len(group.runs)}/{len(self.about['seeds'])}"
            grid.add_row(group.label, runs, *map(Text, cells))
        return grid


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
        write_json(self._plan.out / "table.json", table.content())
        path = self._plan.out / "table.md"
        write_text(path, table.markdown())
        return path

    def table(self) -> SuiteTable:
        """The table of what is finished so far."""
        reference = self._plan.reference
        groups = [
            Group(
                label, model, setting, self._runs.get((setting, label), []), 0, label == reference
            )
            for setting, model in {job.setting: job.model for job in self._plan.runs}.items()
            for label in self._plan.methods
        ]
        about = {
            "name": self._plan.settings.name,
            "command": self._command,
            "reference": reference,
            "reaches": self._plan.settings.reaches,
            "seeds": list(self._plan.settings.seeds),
            **_budgets([job.settings for job in self._plan.runs]),
        }
        methods = {label: method.to_dict() for label, method in self._plan.methods.items()}
        return SuiteTable(about, groups, methods)


def _budgets(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Updates of the runs, and samples of each problem."""
    return {
        "steps": sorted({run["rl"]["max_steps"] for run in settings}),
        "k": sorted({run["eval"]["k"] for run in settings if run["eval"]}),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _scores(group: Group, moment: str, task: str | None = None) -> dict[str, Any]:
    return _intervals({metric: group.estimate(task, metric, moment) for metric in group.metrics})


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


def _text(share: Any) -> str:
    """A share or a difference in percent, with its interval."""
    return "-" if share is None else f"{percent(share.value)} {bracket(share.low, share.high)}"


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "no"
