"""The numbers of a suite: what each method scored, and what its differences are worth.

Runs are read, pooled and compared as in a report; here they are put in order and written down.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustclip.recipes.records import write_json, write_text
from trustclip.report.comparison import Compared, compare
from trustclip.report.groups import Estimate, Group, pooled
from trustclip.report.runs import Evaluation, Run, read_run
from trustclip.report.samples import Samples
from trustclip.suite.markdown import markdown
from trustclip.suite.plan import Job, Plan


class Results:
    """The finished runs of a suite and what they amount to.

    Args:
      suite: the suite.
      command: how it was called, for the caption.
    """

    def __init__(self, suite: Plan, command: str) -> None:
        self._plan, self._command = suite, command
        self._runs: dict[tuple[str, str], list[Run]] = {}

    def add(self, job: Job) -> None:
        """Read a finished run.

        Raises:
          ValueError: its folder cannot be read.
        """
        entry = {
            "label": job.label, "model": job.model, "seed": job.seed, "swept": dict(job.swept)
        }  # fmt: skip
        # Where every completion stands is not needed here, and of many runs takes memory.
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
        """The table as ``table.json`` has it.

        Returns:
          ``rows``, one for each setting (a model, and swept values) and label: ``final`` and
          ``best`` scores and, by task, final ones (``mean@K`` and ``pass@K``, each ``value``,
          ``low``, ``high``; shares of 1), ``gated`` (share of tokens), and ``difference`` to the
          reference of the setting by metric with ``p``, ``p_holm`` (over all labels and settings)
          and ``verdict``. ``before``: scores in each setting before training. Beside them what a
          caption says.
        """
        reference, found = self._plan.reference, self._runs
        models = {job.setting: job.model for job in self._plan.runs}
        groups = [
            Group(label, model, setting, found.get((setting, label), []), 0, label == reference)
            for setting, model in models.items()
            for label in self._plan.methods
        ]
        compared = [found for kind in ("mean", "pass") for found in compare(groups, kind)]
        settings = [job.settings for job in self._plan.runs]
        return {
            "name": self._plan.settings.name,
            "command": self._command,
            "reference": reference,
            "seeds": list(self._plan.settings.seeds),
            "steps": sorted({run["rl"]["max_steps"] for run in settings}),
            "k": sorted({run["eval"]["k"] for run in settings if run["eval"]}),
            "problems": _problems(groups),
            "before": {g.setting: self._before(g) for g in groups if g.is_reference},
            "rows": [
                self._row(group, [found for found in compared if found.group is group])
                for group in groups
            ],
        }

    def _before(self, group: Group) -> dict[str, Any]:
        """Scores before training, each run's own evaluation of the model that it begins from."""
        return _scores(group, [run.initial for run in group.runs if run.initial is not None])

    def _row(self, group: Group, compared: Sequence[Compared]) -> dict[str, Any]:
        final = _moment(group, "final")
        tasks = final[0].tasks if final else []
        found = [_gated(run) for run in group.runs]
        gated = [share for share in found if share is not None]
        return {
            "setting": group.setting,
            "model": group.model,
            "label": group.label,
            "method": self._plan.methods[group.label].to_dict(),
            "seeds": sorted(group.seeds),
            "final": _scores(group, final),
            "best": _scores(group, _moment(group, "best")),
            "tasks": {task: _scores(group, final, task) for task in tasks},
            "gated": sum(gated) / len(gated) if gated else None,
            "difference": {one.metric: _difference(one) for one in compared},
        }


def _moment(group: Group, moment: str) -> list[Evaluation]:
    """The ``final`` or ``best`` evaluation of each run, as far as there is one."""
    found = [run.final if moment == "final" else _best(run) for run in group.runs]
    return [evaluation for evaluation in found if evaluation is not None]


def _best(run: Run) -> Evaluation | None:
    """The evaluation after training began with the highest Mean@K on average."""

    def score(evaluation: Evaluation) -> float:
        return evaluation.scores["average"][evaluation.metrics[0]]["value"]

    return max(run.trained, key=score, default=None)


def _gated(run: Run) -> float | None:
    """Share of gated tokens, mean over updates."""
    found = [row.get("trustclip/gated") for row in run.training]
    shares = [share for share in found if share is not None]
    return sum(shares) / len(shares) if shares else None


def _scores(
    group: Group, evaluations: Sequence[Evaluation], task: str | None = None
) -> dict[str, Any]:
    found = {metric: pooled(evaluations, task, metric) for metric in group.metrics}
    return {metric: _interval(e) for metric, e in found.items() if e is not None}


def _interval(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _difference(found: Compared) -> dict[str, Any]:
    numbers = {} if found.difference is None else vars(found.difference)
    return {**numbers, "p_holm": found.p_holm, "seeds": found.seeds, "verdict": found.verdict}


def _problems(groups: Sequence[Group]) -> dict[str, int]:
    """Number of problems by task."""
    evaluation = next((e for group in groups for e in _moment(group, "final")), None)
    if evaluation is None:
        return {}
    return {task: scores.get("problems", 0) for task, scores in evaluation.scores["tasks"].items()}
