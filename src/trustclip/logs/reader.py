"""Reading run directories, and logs of other trainers, for a report; nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from trustclip.logs.answers import digest, outcomes, scores
from trustclip.logs.forms import CONFIG, SUITE, SUMMARY, read_as
from trustclip.logs.identity import Marks
from trustclip.logs.recognise import holds_log, looked_for, read_log
from trustclip.logs.run import MEASURED, Evaluation, Run, in_words, setting_of
from trustclip.logs.samples import Samples
from trustclip.support.inside import Inside
from trustclip.support.jsonl import Row, read_mapping, scan
from trustclip.support.names import nearest, some

__all__ = ["Evaluation", "Run", "find", "in_words", "read_run", "read_runs", "setting_of"]

#: Columns of rows of numbers that hold texts.
_TEXTS = ("stage", "task")


def read_run(path: Path) -> Run:
    """Read a run directory in any state, finished or not, or the log of another trainer."""
    if not (path / "config.yaml").is_file():
        log = read_log(path)
        config = {"command": log.trainer, "model": "unknown model", "log": str(path)}
        return Run(
            path, {**config, **log.settings}, {"finished": log.finished}, list(log.remarks),
            metrics={"rl": log.rows}, log=log,
        )  # fmt: skip
    files = Inside(path)
    config = read_as(CONFIG, files.file("config.yaml"))
    environment = read_mapping(files.file("environment.json"))
    summary = read_as(SUMMARY, files.file("summary.json"))
    metrics, unreadable = _metrics(files.file("metrics.jsonl"))
    samples = Samples.read(path)
    last = max((row["step"] for row in metrics.get("rl", ())), default=0)
    evaluations, remarks = _evaluations(samples, metrics.get("eval", []), summary, last)
    unreadable += samples.unreadable
    if many := samples.repeated:
        remarks.append(
            f"{many} answer{'s were' if many > 1 else ' was'} written twice: each counts once, as "
            "it was written last"
        )
    if samples.odd:
        remarks.append(f"{some(samples.odd)} is neither 0 nor 1 and was left out")
    if unreadable:
        remarks.append(
            f"lines that cannot be read and were left out: {unreadable} (a kill leaves such lines)"
        )
    run = Run(
        path, config, summary, remarks, environment, metrics, evaluations, samples, _entry(path),
        marks=Marks.read(path),
    )  # fmt: skip
    if not run.finished:
        remarks.insert(0, f"the run is unfinished (updates logged so far: {run.last_step})")
    elif run.silence:
        remarks.insert(0, "the run has logged neither an update nor an evaluation")
    return run


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run directories, suites and logs: every run of each, once."""
    return [read_run(path) for path in dict.fromkeys(find(paths))]


def find(paths: Sequence[Path]) -> Iterator[Path]:
    """Run directories and logs among ``paths``: each itself, or all runs of a suite."""
    for path in paths:
        if (path / "suite.yaml").is_file():
            planned = _suite(path).get("runs") or {}
            runs = sorted(file.parent for file in Inside(path).files("*/config.yaml"))
            order = {name: place for place, name in enumerate(planned)}
            trained = [run for run in runs if not run.name.startswith("sft-")]
            if not trained:
                raise ValueError(f"the suite {path} has no runs yet.")
            yield from sorted(trained, key=lambda run: order.get(run.name, len(order)))
        elif (path / "config.yaml").is_file() or (
            # A folder of run directories holds files, too, that look like logs.
            path.exists() and not any(path.glob("*/config.yaml")) and holds_log(path)
        ):
            yield path
        else:
            raise ValueError(_no_run_message(path))


def _no_run_message(path: Path) -> str:
    if path.exists() and not path.is_dir():
        return f"{path} is neither a file nor a folder."
    if not path.is_dir():
        siblings = [p.parent.name for p in path.parent.glob("*/config.yaml")]
        near = nearest(path.name, siblings)
        hint = f" Did you mean {path.parent / near}?" if near else ""
        return f"there is no file or folder {path}.{hint}"
    inside = sorted(p.parent.name for p in path.glob("*/config.yaml"))
    hint = f" It contains run directories: {', '.join(inside[:5])}." if inside else ""
    return (
        f"{path} is neither a run directory (no config.yaml) nor a suite (no suite.yaml)."
        f"{hint or f' It holds no log of another trainer either: {looked_for()}.'}"
    )


def _suite(folder: Path) -> Mapping[str, Any]:
    """The plan of a suite; empty where a folder has none."""
    path = Inside(folder).file("suite.yaml")
    return _plan(path, path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else {}


@lru_cache(maxsize=4)
def _plan(path: Path, _changed: int, _size: int) -> Mapping[str, Any]:
    """Read once, however many runs of the suite are asked for theirs."""
    return read_as(SUITE, path)


def _entry(path: Path) -> Mapping[str, Any]:
    """The entry of a run directory in its suite, with what the suite says of all its runs."""
    suite = _suite(path.resolve().parent)
    entry = (suite.get("runs") or {}).get(path.resolve().name)
    if entry is None:
        return {}
    shared = {key: suite[key] for key in ("reference", "reaches") if suite.get(key) is not None}
    return {**entry, "suite": suite.get("name"), **shared}


def _metrics(path: Path) -> tuple[dict[str, list[Row]], int]:
    """Rows by stage, each step once, and the number of unreadable lines."""
    merged: dict[tuple[Any, ...], Row] = {}
    unreadable = 0
    for line in scan(path) if path.exists() else ():
        row = line.row
        if row is None or not isinstance(row.get("step"), int) or not _numeric(row):
            unreadable += 1
            continue
        key = (str(row.get("stage")), row["step"], str(row.get("task")), str(row.get("notice")))
        # A trainer logs its last step twice, the second time without the metrics.
        merged[key] = {**merged.get(key, {}), **row}
    by_stage: dict[str, list[Row]] = {}
    for row in sorted(merged.values(), key=lambda row: row["step"]):
        by_stage.setdefault(str(row.get("stage")), []).append(row)
    return by_stage, unreadable


def _numeric(row: Row) -> bool:
    """Whether a row of metrics holds nothing but numbers beside its few texts."""
    return row.get("stage") not in MEASURED or all(
        isinstance(value, int | float | None) for key, value in row.items() if key not in _TEXTS
    )


def _evaluations(
    samples: Samples, log_rows: Sequence[Row], summary: Mapping[str, Any], last: int
) -> tuple[list[Evaluation], list[str]]:
    """Complete evaluations, from the completions if they still exist, and remarks."""
    rows_of: dict[Any, list[Row]] = {}
    for row in log_rows:
        rows_of.setdefault(row["step"], []).append(row)
    by_step = {step: Evaluation(step, _logged_scores(rows), {}) for step, rows in rows_of.items()}
    for evaluation in _summary_evaluations(summary, last or None):
        by_step.setdefault(evaluation.step, evaluation)
    remarks = []
    for step, answers in samples.answers.items():
        if step in by_step:
            rows = list(answers.values())
            by_step[step] = Evaluation(step, scores(rows), outcomes(rows), digest(rows))
            missing, due = by_step[step].lost
            if missing:
                remarks.append(
                    f"{missing} of {due} answers are missing in the evaluation at update {step}: "
                    "means are of the others, and Pass@K leaves out the problems that lack some"
                )
        else:
            at = "" if step is None else f" at step {step}"
            few = f"it has {len(answers)} answers and is not scored"
            remarks.append(f"the evaluation{at} is incomplete: {few}")
    return sorted(by_step.values(), key=lambda e: inf if e.step is None else e.step), remarks


def _logged_scores(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Scores of one step of ``metrics.jsonl``, in the form of `scores`."""
    parts = {str(row.get("task")): _logged_part(row) for row in rows}
    average = parts.pop("average", None)
    return {"tasks": parts, "average": average or next(iter(parts.values()))}


def _logged_part(row: Row) -> Mapping[str, Any]:
    names = [key for key in row if "@" in key and "/" not in key]
    intervals = {
        name: {"value": row[name], "low": row.get(f"{name}/low"), "high": row.get(f"{name}/high")}
        for name in names
    }
    others = ("length", "truncated", "no_answer", "problems")
    return intervals | {key: row[key] for key in others if key in row}


def _summary_evaluations(summary: Mapping[str, Any], last: int | None) -> Iterator[Evaluation]:
    for name, step in (("initial", 0), ("final", last)):
        if scored := summary.get(name):
            yield Evaluation(step, scored, {})
    if "tasks" in summary and "average" in summary:
        yield Evaluation(None, {key: summary[key] for key in ("tasks", "average")}, {})
