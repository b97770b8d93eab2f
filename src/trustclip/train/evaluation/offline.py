"""Grade stored completions again."""

import csv
from collections.abc import Sequence
from pathlib import Path

from trustclip.logs.samples import sample_rows
from trustclip.support.jsonl import Row, read_jsonl
from trustclip.train.problems.verify import Style, Verifier, extract_answer


def read_samples(path: Path) -> list[Row]:
    """Completions and golds of a run's folder, of a JSON-lines file, or of a CSV file with the
    columns ``answer`` and ``gold``.

    Raises:
      ValueError: no such file, or a row without a response or a gold; the message names the row.
    """
    if path.is_dir():
        rows = list(sample_rows(path))
        path = path / "samples.jsonl"
    elif not path.is_file():
        raise ValueError(f"no file {path}.")
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
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
      (rows, counts): the verifier's counts, and ``changed``: rows whose verdict is not the stored
      one.
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
