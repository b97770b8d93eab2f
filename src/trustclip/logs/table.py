"""A table of runs: one row for each, as Parquet, from which a report can be rebuilt.

It holds what scores and comparisons are made of: every evaluation's answers, right or wrong, a
digest of its completions, and the means of what was logged. Texts, tokens and the single updates
stay in the run directories.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NotRequired

from trustclip.logs.answers import of_answers
from trustclip.logs.forms import ENTRY, EVALUATED, HASHES, MARKED, NOTICE, SUMMARY
from trustclip.logs.identity import Marks
from trustclip.logs.run import Evaluation, Run
from trustclip.logs.samples import Samples
from trustclip.support import parquet
from trustclip.support.inside import part_of
from trustclip.support.jsonl import Row
from trustclip.support.reading import parse_json
from trustclip.support.schemas import conform, mapping
from trustclip.support.secrets import redact

if TYPE_CHECKING:
    import pyarrow as pa

#: Marks the file as a table of runs, with the version of its columns.
_MARK, _VERSION = b"trustclip.runs", b"1"
#: Parts of a summary that are evaluations, and of an environment that are of the machine.
_EVALUATED = ("initial", "final", "best", "before", "after", "tasks", "average", HASHES)
_OF_MACHINE = ("argv", "platform")


def write_table(path: Path, runs: Sequence[Run], beside: Sequence[Mapping[str, Any]]) -> None:
    """Write runs as a table, whole or not at all; secrets in their settings are left out.

    Args:
      path: of the Parquet file.
      runs: of any kind but logs of other trainers.
      beside: of each run, what a reader of the table looks for: ``label``, and ``end``, ``best``,
        ``area`` (shares of 1, or None) and ``collapsed``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{**_row(run), **more} for run, more in zip(runs, beside, strict=True)]
    part = part_of(path)
    table = pa.Table.from_pylist(rows, schema=_schema())
    pq.write_table(table, part, compression="zstd", compression_level=19)
    part.replace(path)


def is_table(path: Path) -> bool:
    """Whether a path is a table of runs."""
    return path.suffix == ".parquet" and path.is_file() and _MARK in parquet.metadata(path)


def read_table(path: Path) -> list[Run]:
    """The runs of a table.

    Raises:
      ValueError: it is of another version, or a row is not as `write_table` writes it.
    """
    if (version := parquet.metadata(path).get(_MARK)) != _VERSION:
        raise ValueError(f"{path} is a table of runs of version {version!r}; read is {_VERSION!r}.")
    rows = enumerate(parquet.rows(path, kept=True), start=1)
    return [_run(path, row, f"{path}, run {number}") for number, row in rows]


def _schema() -> "pa.Schema":
    import pyarrow as pa

    answer = pa.struct(
        [("task", pa.string()), ("id", pa.string()), ("right", pa.list_(pa.bool_()))]
    )
    evaluation = pa.struct(
        [("update", pa.int32()), ("answers", pa.list_(answer)), ("texts", pa.string()),
         ("others", pa.string())]
    )  # fmt: skip
    columns = {
        "name": pa.string(), "label": pa.string(), "model": pa.string(), "swept": pa.string(),
        "method": pa.string(), "seed": pa.int64(), "updates": pa.int32(), "end": pa.float64(),
        "best": pa.float64(), "area": pa.float64(), "collapsed": pa.bool_(),
        "cpu_seconds": pa.float64(), "means": pa.map_(pa.string(), pa.float64()),
        "evaluations": pa.list_(evaluation), "record": pa.string(),
    }  # fmt: skip
    return pa.schema([*columns.items()], metadata={_MARK: _VERSION})


def _row(run: Run) -> dict[str, Any]:
    summary = {key: value for key, value in run.summary.items() if key not in _EVALUATED}
    environment = {k: value for k, value in run.environment.items() if k not in _OF_MACHINE}
    record = {
        "config": run.config,
        "marks": run.marks and vars(run.marks),
        "environment": environment,
        "summary": summary,
        "entry": run.entry,
        "remarks": [*run.remarks],
        "notices": run.notices,
    }
    return {
        "name": run.name,
        "model": run.model,
        "swept": json.dumps(dict(run.swept)),
        "method": json.dumps(run.method and dict(run.method)),
        "seed": run.seed if isinstance(run.seed, int) else None,
        "updates": run.last_step,
        "cpu_seconds": run.summary.get("cpu_seconds"),
        "means": [*means(run.training).items()],
        "evaluations": [_evaluation(evaluation) for evaluation in run.evaluations],
        "record": json.dumps(redact(record), default=str),
    }


def means(rows: Sequence[Row]) -> dict[str, float]:
    """Mean of every metric over the rows that have it.

    Example:
      >>> means([{"stage": "rl", "step": 1, "loss": 1.0}, {"stage": "rl", "step": 2, "loss": 2.0}])
      {'loss': 1.5}
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                values.setdefault(name, []).append(value)
    return {name: fmean(column) for name, column in values.items()}


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation with its answers and, of the scores, what these do not give."""
    others = evaluation.scores
    if evaluation.answers:
        parts = evaluation.scores["tasks"].items()
        others = {
            "tasks": {task: _others(part) for task, part in parts},
            "average": _others(evaluation.scores["average"]),
        }
    answers = [
        {"task": task, "id": name, "right": [bool(right) for right in correct]}
        for task, problems in evaluation.answers.items()
        for name, correct in problems.items()
    ]
    return {
        "update": evaluation.step,
        "answers": answers,
        "texts": evaluation.texts,
        "others": json.dumps(others),
    }


def _others(part: Mapping[str, Any]) -> dict[str, Any]:
    """Scores without those of `of_answers`."""
    derived = ("problems", "curve")
    return {key: value for key, value in part.items() if "@" not in key and key not in derived}


_ROW = mapping(
    "Row",
    {
        "name": str,
        "updates": int | None,
        "means": list[tuple[str, float | None]],
        "evaluations": list[
            mapping(
                "OfRow",
                {
                    "update": int | None,
                    "answers": list[
                        mapping("Answer", {"task": str, "id": str, "right": list[bool]})
                    ],
                    "texts": str | None,
                    "others": str,
                },
            )
        ],
        "record": str,
    },
    more=True,
)
_RECORD = mapping(
    "Record",
    {
        **dict.fromkeys(("config", "environment"), dict[str, Any]),
        "summary": SUMMARY,
        "entry": ENTRY,
        "remarks": list[str],
        "notices": list[NOTICE],
        "marks": NotRequired[MARKED | None],  # tables of 0.2.0 have none
    },
)


def _run(path: Path, row: Mapping[str, Any], where: str) -> Run:
    conform(row, _ROW, where)
    record = _json(row["record"], f"{where}: record")
    conform(record, _RECORD, f"{where}: record")
    averages = {"stage": "rl", "step": row["updates"], **dict(row["means"])}
    return Run(
        path=path / row["name"],
        config=record["config"],
        environment=record["environment"],
        summary=record["summary"],
        metrics={"rl": [averages] if row["updates"] else [], "notice": record["notices"]},
        evaluations=[_restore(evaluation, where) for evaluation in row["evaluations"]],
        samples=Samples(),
        remarks=record["remarks"],
        entry=record["entry"],
        tabled=True,
        marks=Marks(**record["marks"]) if record.get("marks") else None,
    )


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {error}.") from error


def _restore(row: Mapping[str, Any], where: str) -> Evaluation:
    answers: dict[str, dict[str, list[int]]] = {}
    for one in row["answers"]:
        answers.setdefault(one["task"], {})[one["id"]] = [int(right) for right in one["right"]]
    scores = _json(row["others"], f"{where}: others")
    conform(scores, EVALUATED, f"{where}: others")
    if answers:
        recomputed = of_answers(answers)
        for task, part in recomputed["tasks"].items():
            scores["tasks"][task] = part | scores["tasks"].get(task, {})
        scores["average"] = recomputed["average"] | scores["average"]
    return Evaluation(row["update"], scores, answers, row["texts"])
