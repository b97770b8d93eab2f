"""Completions that TRL and verl have written, for the microscope: texts, and what they are about.

These files hold no log-probabilities, so no method can be computed on them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trustclip.logs.recognise import looked_for
from trustclip.support import parquet
from trustclip.support.jsonl import scan

Row = Mapping[str, Any]

#: Largest file of another program that is put into a page, bytes.
LARGEST = 64 << 20
_TEXT = ("completion", "output")
_ABOUT = {
    "problem": ("problem", "prompt", "input"),
    "gold": ("gold", "gts", "answer", "solution"),
    "reward": ("reward", "score"),
}


def completions(path: Path) -> Iterator[dict[str, Any]]:
    """Each completion of a file: its text, its problem, gold answer and reward.

    Raises:
      ValueError: there is no such file, it is too large, or holds no completion.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST >> 20} MiB, too much to lie in a page.")
    rows = [row for row in _rows(path) if _first(row, _TEXT) is not None]
    if not rows:
        raise ValueError(
            f"{path} holds no completion: {looked_for()}; or TRL's completions (prompt, "
            "completion) or verl's rollouts (input, output)."
        )
    yield from map(_about, rows)


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        yield from parquet.rows(path, kept=True)
        return
    for line in scan(path):
        if line.row is None:
            raise ValueError(
                f"{path}, line {line.number}: this is no JSON object; expected JSON lines or "
                f"Parquet: {looked_for()}."
            )
        yield line.row


def _about(row: Row) -> dict[str, Any]:
    found = {name: _first(row, names) for name, names in _ABOUT.items()}
    others = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name not in ("step", "advantage", "reward", "score")
    }
    reward = _number(found["reward"])
    if reward is None and others:
        reward = sum(others.values())  # TRL's: one column for each reward
    step = _number(row.get("step"))
    return {
        "problem": _words(found["problem"]),
        "gold": _words(found["gold"]),
        "reward": reward,
        "update": None if step is None else int(step),
        "said": _words(_first(row, _TEXT)),
        "given": {"advantage": _number(row.get("advantage")), **others},
    }


def _first(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _number(value: Any) -> float | None:
    number = float(value) if isinstance(value, int | float) else None
    return None if number is None or not np.isfinite(number) else number


def _words(value: Any) -> str | None:
    """A text, or the turns of a conversation."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(t, Mapping) for t in value):
        return "\n\n".join(_words(turn.get("content")) or "" for turn in value)
    if isinstance(value, list) and len(value) == 1:
        return _words(value[0])
    return json.dumps(value, default=str)
