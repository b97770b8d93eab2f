"""What can be said of stored completions: grade them again, compare runs."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from trustclip import stats
from trustclip.recipes.evaluate import Row, interval_text, outcomes
from trustclip.recipes.records import read_jsonl
from trustclip.rewards import Style, Verifier, extract_answer


def read_samples(path: Path) -> list[Row]:
    """Completions with their golds: our ``samples.jsonl``, or a CSV with ``answer`` and ``gold``.

    Raises:
      ValueError: no such file, or a row without a response or a gold; the message names the row.
    """
    if not path.is_file():
        raise ValueError(f"no file {path}.")
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[Row] = [
                {"response": row.get("answer"), "gold": row.get("gold")}
                for row in csv.DictReader(file)
            ]
    else:
        rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        for column in ("response", "gold"):
            if not isinstance(row.get(column), str):
                raise ValueError(f"{path}: row {number} has no text in {column!r}.")
    if not rows:
        raise ValueError(f"{path} holds no completion.")
    return rows


def grade(rows: Sequence[Row], style: Style) -> tuple[list[Row], dict[str, int]]:
    """Rows with ``extracted`` and ``correct`` set anew, and how they were judged.

    Returns:
      (rows, counts): counts are the verifier's, and ``changed`` those that had another verdict.
    """
    with Verifier() as verifier:
        scores = verifier.score(
            [row["gold"] for row in rows], [row["response"] for row in rows], style
        )
        counts = dict(verifier.counts)
    graded = [
        {**row, "extracted": extract_answer(row["response"], style), "correct": int(score)}
        for row, score in zip(rows, scores, strict=True)
    ]
    counts["changed"] = sum(
        "correct" in old and old["correct"] != new["correct"]
        for old, new in zip(rows, graded, strict=True)
    )
    return graded, counts


def compare_runs(folders: Sequence[Path]) -> Table:
    """Table of Mean@K over run directories: scores, differences to the first, verdicts.

    Raises:
      ValueError: fewer than two runs, a folder without evaluation samples, or other problems.
    """
    if len(folders) < 2:
        raise ValueError("a comparison needs two run directories or more.")
    answers = {str(folder): _answers(folder) for folder in folders}
    problems, runs = stats.align(answers)
    strata = [problem.partition(": ")[0] for problem in problems]
    table = Table(box=None, pad_edge=False)
    for title in ("run", "Mean@K %", "difference", "p (Holm)", "verdict"):
        table.add_column(title, overflow="fold")
    for row in stats.compare(runs, strata):
        gap = "" if row.difference is None else interval_text(vars(row.difference))
        p = "" if row.difference is None else f"{row.p_adjusted:.4f}"
        table.add_row(row.name, interval_text(vars(row.score)), gap, p, row.verdict)
    return table


def _answers(folder: Path) -> dict[str, list[int]]:
    """Correctness by ``task: id`` of a run's last evaluation."""
    path = folder / "samples.jsonl"
    if not path.is_file():
        raise ValueError(f"{folder} is no run directory with samples.jsonl.")
    stages: dict[Any, list[Row]] = {}
    for row in read_jsonl(path):
        if "task" in row:
            stages.setdefault(row.get("stage"), []).append(row)
    if not stages:
        raise ValueError(f"{folder} holds no evaluation.")
    last = list(stages.values())[-1]
    return {
        f"{task}: {identity}": correct
        for task, problems in outcomes(last).items()
        for identity, correct in problems.items()
    }
