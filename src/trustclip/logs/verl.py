"""verl's own loggers: ``console`` (lines of ``step:N - name:value``) and ``file`` (JSON lines)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trustclip.logs.log import Log, Source, first_row, numbers
from trustclip.logs.metrics import log_of
from trustclip.support.inside import Inside
from trustclip.support.jsonl import numbered
from trustclip.support.reading import lines, opened

#: Suffixes under which people keep what a program printed.
_TEXTS = (".log", ".txt", ".out")
_STEP = re.compile(rb"\bstep:(\d{1,15}) - ")
_VALUE = re.compile(
    r"([\w/@.\- ]+?):(?:np\.\w+\()?(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf))\)?(?: - |$)"
)
#: Bytes in which the first line of steps is looked for, to recognise a console log.
_SEARCHED = 64 << 20


def _accepts(path: Path, head: bytes) -> bool:
    first = first_row(head)
    return set(first) == {"step", "data"} or (b"\0" not in head and _has_steps(path))


def _has_steps(path: Path) -> bool:
    budget = _SEARCHED
    for line in lines(path):
        if budget < 0 or _STEP.search(line):
            return budget >= 0
        budget -= len(line)
    return False


def _candidates(folder: Path) -> list[Path]:
    """Logs of either kind in a folder."""
    paths = []
    # wandb puts links to its logs elsewhere beside its own files.
    files = (path for path in sorted(folder.iterdir()) if Inside(folder).holds(path))
    for path in (path for path in files if path.is_file()):
        if path.suffix == ".jsonl":
            first = first_row(next(lines(path), b""))
            paths += [path] if set(first) == {"step", "data"} else []
        elif path.suffix in _TEXTS and _has_steps(path):
            paths.append(path)
    return paths


def _read(path: Path) -> Log:
    """Read a console log, or a file of verl's logger ``file``.

    Raises:
      ValueError: it is damaged, holds two runs, or no metric of reinforcement learning.
    """
    remarks: list[str] = []
    with opened(path) as file:
        as_json = file.read(1) == b"{"
    measured = (_json if as_json else _console)(path, remarks)
    kind = "JSON lines" if as_json else "console log"
    return log_of(path, kind, measured, {}, remarks, "verl")


def _json(path: Path, remarks: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, row in numbered(path, remarks):
        step, data = row.get("step"), row.get("data")
        if not isinstance(step, int) or not isinstance(data, Mapping):
            raise ValueError(
                f"{path}:{number} is none of verl's: expected a whole number as step and an "
                "object as data."
            )
        yield step, numbers(data)


def _console(path: Path, remarks: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines(path), start=1):
        match = _STEP.search(line)
        if match is None:
            continue
        if not line.endswith(b"\n"):
            remarks.append(f"line {number} is half written, and left out")
            return
        text = line[match.end() :].decode("utf-8", "replace").strip()
        values = {name.strip(): float(value) for name, value in _VALUE.findall(text)}
        yield int(match[1]), numbers(values)


SOURCE = Source(
    "a console log with lines of `step:N - ...`, or JSON lines with step and data (verl)",
    _accepts,
    _candidates,
    _read,
)
