"""``metrics.jsonl`` of tinker-cookbook and prime-rl: JSON lines of numbers, each with its step."""

from collections.abc import Iterator
from pathlib import Path

from trustclip.logs import names
from trustclip.logs.hyperparameters import log_of
from trustclip.logs.log import Log, Source, numbers
from trustclip.support.inside import Inside
from trustclip.support.jsonl import numbered, parse_line
from trustclip.support.reading import opened

#: Bytes in which a name of one of these trainers must stand: prime-rl's first rows have none.
_HEAD = 1 << 16


def _accepts(path: Path, head: bytes) -> bool:
    whole = head[: head.rfind(b"\n") + 1].splitlines()
    rows = [row for line in whole if (row := parse_line(line)) is not None]
    known = names.trainer_of([name for row in rows for name in row]) in names.VALUES
    return path.suffix == ".jsonl" and known and isinstance(rows[0].get("step"), int)


def _candidates(folder: Path) -> Iterator[Path]:
    path = Inside(folder).file("metrics.jsonl")
    if path.is_file():
        with opened(path) as file:
            head = file.read(_HEAD)
        if _accepts(path, head):
            yield path


def _read(path: Path) -> Log:
    """Read a file of metrics; a row without a step, of running totals, is left out.

    Raises:
      ValueError: it is damaged, holds two runs, or no metric of reinforcement learning.
    """
    remarks: list[str] = []
    rows = (row for _, row in numbered(path, remarks) if isinstance(row.get("step"), int))
    measured = ((row["step"], numbers(row)) for row in rows)
    return log_of(path, path.name, measured, remarks=remarks)


SOURCE = Source(
    "metrics.jsonl, JSON lines with step and metrics (tinker-cookbook, prime-rl)",
    _accepts,
    lambda folder: [*_candidates(folder)],
    _read,
)
