"""Outcomes of an evaluation that somebody else made, as rows of ``samples.jsonl``."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trustclip.support.jsonl import Row

#: Columns that a row may have besides ``id`` and ``correct``, and their values where unknown.
_OPTIONAL: Mapping[str, Any] = {
    "gold": "",
    "response": "",
    "extracted": "",
    "tokens": math.nan,
    "truncated": False,
}


def answer_rows(
    task: str, answers: Mapping[Any, Sequence[Any]] | Sequence[Mapping[str, Any]]
) -> list[Row]:
    """Rows of the answers to the problems of a task, K to each.

    Answers are ``{problem: [1, 0, ...]}``, or rows with ``id`` and ``correct``, 0 or 1.

    Example:
      >>> rows = answer_rows("sums", {"1+1": [1, 0]})
      >>> [(row["id"], row["k"], row["correct"]) for row in rows]
      [('1+1', 0, 1), ('1+1', 1, 0)]
    """
    number: Counter[str] = Counter()
    rows: list[Row] = []
    if isinstance(answers, Mapping):
        answers = [{"id": i, "correct": one} for i, samples in answers.items() for one in samples]
    for row in answers:
        if "id" not in row or row.get("correct") not in (0, 1):
            raise ValueError(
                f"an answer has `id`, its problem, and `correct`, 0 or 1; got {dict(row)!r:.200}."
            )
        identity = str(row["id"])
        optional = {name: row.get(name, unknown) for name, unknown in _OPTIONAL.items()}
        own = {"task": task, "id": identity, "k": number[identity], "judged": "given"}
        rows.append({**own, "correct": int(row["correct"]), **optional})
        number[identity] += 1
    if not rows:
        raise ValueError(f"there are no answers to record for {task!r}.")
    counts = [(count, identity) for identity, count in number.items()]
    (least, fewest), (most, largest) = min(counts), max(counts)
    if least != most:
        raise ValueError(
            f"every problem needs the same number of answers: {fewest!r} has {least}, {largest!r} "
            f"has {most}."
        )
    return rows
