"""Reading run directories, and logs of other trainers, for a report; nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from trustclip.constraints.names import nearest
from trustclip.runs.answers import outcomes, scores
from trustclip.runs.foreign.log import Log
from trustclip.runs.foreign.recognise import holds_log, looked_for, read_log
from trustclip.runs.identity import with_method
from trustclip.runs.jsonl import Row, read_mapping, scan
from trustclip.runs.samples import Samples

#: Stands for the last row of a training that has logged nothing.
_NOTHING: Row = {"step": 0}


@dataclass(frozen=True)
class Evaluation:
    """The answers to all test problems at one point of a run.

    Args:
      step: updates done by then; None where no training took part.
      scores: as `trustclip.evaluation.evaluate.scores` makes them.
      answers: correctness, ``{task: {problem: [0, 1, ...]}}``; empty where samples are gone.
    """

    step: int | None
    scores: Mapping[str, Any]
    answers: Mapping[str, Mapping[str, list[int]]]

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.scores["tasks"])

    @property
    def metrics(self) -> list[str]:
        """Names of the scores: ``["mean@8", "pass@8"]``."""
        return [name for name in self.scores["average"] if "@" in name]

    def score(self, task: str | None, metric: str) -> Mapping[str, float] | None:
        """``{"value", "low", "high"}`` of a task, or of the average (None), if it was measured."""
        part = self.scores["average"] if task is None else self.scores["tasks"].get(task, {})
        return part.get(metric)


@dataclass(frozen=True)
class Run:
    """A run directory, or the log of another trainer's run.

    Args:
      path: the folder, or the log's file.
      config: its ``config.yaml``.
      environment: its ``environment.json``.
      summary: its ``summary.json``, empty as long as there is none.
      metrics: rows of ``metrics.jsonl`` by stage; of a step logged twice, the later.
      evaluations: complete ones, in order.
      samples: where its completions are.
      remarks: sentences about the state of this folder, for the reader of a report.
      entry: its entry in its suite (label, model, seed, method, reference), empty without one.
      log: the log that it was read from, where that is another trainer's.
    """

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: Mapping[str, Sequence[Row]]
    evaluations: Sequence[Evaluation]
    samples: Samples
    remarks: Sequence[str]
    entry: Mapping[str, Any]
    log: Log | None = None

    @property
    def command(self) -> str:
        return str(self.config.get("command") or self.summary.get("command") or "run")

    @property
    def name(self) -> str:
        """Name of the folder; of a log, that of its file, unless every run's is the same."""
        path = self.path.resolve()
        return path.parent.name if path.name == "trainer_state.json" else path.name

    @property
    def seed(self) -> Any:
        return self.entry.get("seed", self.config.get("seed"))

    @property
    def model(self) -> str:
        """Name of the model that training began with, without its folders."""
        if self.command == "demo":
            return "tiny"
        model = self.entry.get("model") or self.config.get("model") or "model"
        parts = Path(str(model)).parts
        return "/".join(parts[-2:]) if parts[-1:] == ("final",) else parts[-1]

    @property
    def swept(self) -> Mapping[str, Any]:
        """Values of the settings that its suite sweeps, by their paths in the recipe."""
        return self.entry.get("swept") or {}

    @property
    def setting(self) -> str:
        """Model and swept values, in words; methods are compared within a setting."""
        return setting_of(self.model, self.swept)

    @property
    def method(self) -> Mapping[str, Any] | None:
        """Method and hyper-parameters, ``{"name": ..., ...}``; None where nothing was trained."""
        stage = self.config.get("rl") if self.command == "run" else self.config
        told = stage.get("method") if isinstance(stage, Mapping) else None
        given = (self.entry.get("method"), self.summary.get("method"), told)
        return next((m for m in given if m and isinstance(m, Mapping)), None)

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        whole = bool(self.summary)
        return bool(self.summary.get("finished", whole and self.command not in ("run", "demo")))

    @property
    def training(self) -> Sequence[Row]:
        """Logged rows of reinforcement learning."""
        return self.metrics.get("rl", ())

    @property
    def last_step(self) -> int:
        """Last logged update."""
        return max((row["step"] for row in (self.training or (_NOTHING,))), default=0)

    @property
    def silence(self) -> str:
        """Why there is nothing to say of it, in one sentence; empty where something is logged."""
        rows = any(self.metrics.get(stage) for stage in _MEASURED)
        if rows or self.evaluations or self.log is not None:
            return ""
        file = self.path / "metrics.jsonl"
        size = file.stat().st_size if file.exists() else -1
        state = "is missing" if size < 0 else "holds neither" if size else "is empty"
        return f"{self.path} has logged neither an update nor an evaluation: {file.name} {state}."

    @property
    def notices(self) -> list[Row]:
        """Warnings of the guards, oldest first."""
        return [*self.metrics.get("notice", ())]

    @property
    def initial(self) -> Evaluation | None:
        """The evaluation before any update."""
        return next((e for e in self.evaluations if e.step == 0), None)

    @cached_property
    def trained(self) -> list[Evaluation]:
        """The evaluations after some update, or of no training at all."""
        return [e for e in self.evaluations if e.step != 0]

    @property
    def final(self) -> Evaluation | None:
        """The last evaluation after training."""
        return self.trained[-1] if self.trained else None


def setting_of(model: str, swept: Mapping[str, Any]) -> str:
    """A model and swept values, in words.

    Example:
      >>> setting_of("tiny", {"rl.reward_noise": 0.1})
      'tiny, reward_noise 0.1'
    """
    return ", ".join([model, *in_words(swept)])


def in_words(swept: Mapping[str, Any]) -> list[str]:
    """Swept settings, each as its name and value.

    Example:
      >>> in_words({"rl.reward_noise": 0.1})
      ['reward_noise 0.1']
    """
    return [
        f"{path.rpartition('.')[2]} {value:g}" if isinstance(value, float)
        else f"{path.rpartition('.')[2]} {value}"
        for path, value in swept.items()
    ]  # fmt: skip


#: Stages whose rows hold numbers, and the columns of these that hold texts.
_MEASURED, _TEXTS = ("rl", "sft", "eval"), ("stage", "task")


def read_run(path: Path) -> Run:
    """Read a run directory in any state, finished or not, or the log of another trainer.

    Args:
      path: the folder, or the log's file.

    Raises:
      ValueError: it is neither, or one of its files is damaged.
    """
    if not (path / "config.yaml").is_file():
        return _of_log(path, read_log(path))
    config = with_method(read_mapping(path / "config.yaml"))
    environment = read_mapping(path / "environment.json")
    summary = read_mapping(path / "summary.json")
    metrics, unreadable = _metrics(path / "metrics.jsonl")
    samples = Samples.read(path)
    last = max((row["step"] for row in metrics.get("rl", ())), default=0)
    evaluations, remarks = _evaluations(samples, metrics.get("eval", []), summary, last)
    unreadable += samples.unreadable
    if unreadable:
        remarks.append(
            f"{unreadable} unreadable line{'s' * (unreadable > 1)} skipped, as left by a kill"
        )
    run = Run(
        path, config, environment, summary, metrics, evaluations, samples, remarks, _entry(path)
    )  # fmt: skip
    if not run.finished:
        remarks.insert(0, f"unfinished: {run.last_step} updates logged so far")
    elif run.silence:
        remarks.insert(0, "neither an update nor an evaluation logged")
    return run


def _of_log(path: Path, log: Log) -> Run:
    """A log as a run, for reports that compare it with others."""
    return Run(
        path=path,
        config={"command": log.trainer, "model": "unknown model", "log": str(path), **log.settings},
        environment={},
        summary={"finished": log.finished},
        metrics={"rl": log.rows},
        evaluations=[],
        samples=Samples(),
        remarks=list(log.remarks),
        entry={},
        log=log,
    )


def find(paths: Sequence[Path]) -> Iterator[Path]:
    """Run directories and logs among ``paths``: each itself, or all runs of a suite.

    Raises:
      ValueError: a path is neither; the message names it, and run directories near it.
    """
    for path in paths:
        if (path / "suite.yaml").is_file():
            planned = read_mapping(path / "suite.yaml").get("runs") or {}
            runs = sorted(p.parent for p in path.glob("*/config.yaml"))
            order = {name: place for place, name in enumerate(planned)}
            trained = [run for run in runs if not run.name.startswith("sft-")]
            if not trained:
                raise ValueError(f"the suite {path} has no runs yet.")
            yield from sorted(trained, key=lambda run: order.get(run.name, len(order)))
        elif (path / "config.yaml").is_file() or _is_log(path):
            yield path
        else:
            raise ValueError(_no_run(path))


def _is_log(path: Path) -> bool:
    # A folder of run directories holds files, too, that look like logs.
    return path.exists() and not any(path.glob("*/config.yaml")) and holds_log(path)


def _no_run(path: Path) -> str:
    if not path.is_dir():
        siblings = [p.parent.name for p in path.parent.glob("*/config.yaml")]
        near = nearest(path.name, siblings)
        hint = f" Did you mean {path.parent / near}?" if near else ""
        return f"there is no folder {path}.{hint}"
    inside = sorted(p.parent.name for p in path.glob("*/config.yaml"))
    hint = f" It contains run directories: {', '.join(inside[:5])}." if inside else ""
    return (
        f"{path} is neither a run directory (no config.yaml) nor a suite (no suite.yaml)."
        f"{hint or f' Nor does it hold a log of another trainer: {looked_for()}.'}"
    )


def _entry(path: Path) -> Mapping[str, Any]:
    """The entry of a run directory in its suite, with the label of the reference."""
    suite = read_mapping(path.resolve().parent / "suite.yaml")
    runs = suite.get("runs")
    entry = runs.get(path.resolve().name) if isinstance(runs, Mapping) else None
    return {**entry, "reference": suite.get("reference")} if isinstance(entry, Mapping) else {}


def _metrics(path: Path) -> tuple[dict[str, list[Row]], int]:
    """Rows by stage, each step once, and the number of unreadable lines."""
    found: dict[tuple[Any, ...], Row] = {}
    unreadable = 0
    for line in scan(path) if path.exists() else ():
        row = line.row
        if row is None or not isinstance(row.get("step"), int) or not _numeric(row):
            unreadable += 1
            continue
        key = (str(row.get("stage")), row["step"], str(row.get("task")), str(row.get("notice")))
        # A trainer logs its last step twice, the second time without the metrics.
        found[key] = {**found.get(key, {}), **row}
    by_stage: dict[str, list[Row]] = {}
    for row in sorted(found.values(), key=lambda row: row["step"]):
        by_stage.setdefault(str(row.get("stage")), []).append(row)
    return by_stage, unreadable


def _numeric(row: Row) -> bool:
    """Whether a row of metrics holds nothing but numbers beside its few texts."""
    return row.get("stage") not in _MEASURED or all(
        isinstance(value, int | float | None) for key, value in row.items() if key not in _TEXTS
    )


def _evaluations(
    samples: Samples, logged: Sequence[Row], summary: Mapping[str, Any], last: int
) -> tuple[list[Evaluation], list[str]]:
    """Complete evaluations, from the completions if they still exist, and remarks."""
    rows_of: dict[Any, list[Row]] = {}
    for row in logged:
        rows_of.setdefault(row["step"], []).append(row)
    found = {step: Evaluation(step, _logged_scores(rows), {}) for step, rows in rows_of.items()}
    for evaluation in _summarised(summary, last or None):
        found.setdefault(evaluation.step, evaluation)
    remarks = []
    for (stage, given), answers in samples.answers.items():
        step = {"before": 0, "after": last}.get(stage or "", given)
        if step in found:
            rows = list(answers.values())
            found[step] = Evaluation(step, scores(rows), outcomes(rows))
        else:
            at = "" if step is None else f" at step {step}"
            remarks.append(f"the evaluation{at} is incomplete: {len(answers)} answers, not scored")
    return sorted(found.values(), key=lambda e: inf if e.step is None else e.step), remarks


def _logged_scores(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Scores of one step of ``metrics.jsonl``, in the form of `scores`."""
    parts = {str(row.get("task")): _logged_part(row) for row in rows}
    average = parts.pop("average", None)
    return {"tasks": parts, "average": average or next(iter(parts.values()))}


def _logged_part(row: Row) -> Mapping[str, Any]:
    names = [key for key in row if "@" in key and "/" not in key]
    intervals = {
        name: {
            "value": row[name],
            "low": row.get(f"{name}/low"),
            "high": row.get(f"{name}/high"),
        }
        for name in names
    }
    others = ("length", "truncated", "no_answer", "problems")
    return intervals | {key: row[key] for key in others if key in row}


def _summarised(summary: Mapping[str, Any], last: int | None) -> Iterator[Evaluation]:
    """Evaluations in a summary."""
    for name, step in (("initial", 0), ("before", 0), ("final", last), ("after", last)):
        part = summary.get(name)
        if isinstance(part, Mapping) and part:
            whole = part if "average" in part else {"tasks": {}, "average": part}
            yield Evaluation(step, whole, {})
    if "tasks" in summary and "average" in summary:
        yield Evaluation(None, {key: summary[key] for key in ("tasks", "average")}, {})
