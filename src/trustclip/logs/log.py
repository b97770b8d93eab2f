"""What a log of another trainer says: metrics under our names, settings, and perhaps tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustclip.logs import names
from trustclip.logs.digest import Digest
from trustclip.logs.tokens import TokenRow
from trustclip.support.jsonl import Row, parse_line
from trustclip.support.reading import BEYOND


@dataclass(frozen=True)
class Schedule:
    """How often the policy was updated on one generation of samples, and how that is known."""

    updates: float  # per generation; 1 means that every token was trained on at ratio 1
    basis: str  # the figures it follows from, in words


@dataclass(frozen=True)
class Source:
    """A form in which logs are kept, and its reader.

    Args:
      files: what such a log is, for a sentence that says what was looked for.
      accepts: whether a file is one, by its path and its first bytes.
      candidates: those in a folder, without the folders below.
      read: the log at a path; a ValueError where it is damaged, of two runs, or of none.
      rows: its tokens, one completion at a time, without computing anything from them; None where
        it has none.
    """

    files: str
    accepts: Callable[[Path, bytes], bool]
    candidates: Callable[[Path], list[Path]]
    read: Callable[[Path], "Log"]
    rows: Callable[[Path], Iterator[TokenRow]] | None = None


@dataclass(frozen=True)
class Log:
    """The log of a run of another trainer."""

    path: Path
    trainer: str  # the program that trained, as its users call it: "TRL", "verl"
    kind: str  # what was read, e.g. "trainer_state.json"
    rows: Sequence[Row]  # a row an update, with `step`; metrics have our names where we have one
    settings: Mapping[str, Any] = field(default_factory=dict)  # by the trainer's names
    schedule: Schedule | None = None  # None where the log does not say
    digest: Digest | None = None  # what was computed from its tokens, where it has any
    unknown: Sequence[str] = ()  # sentences about what the log cannot answer
    remarks: Sequence[str] = ()  # sentences about the state of the files
    finished: bool = True  # the run had reached its end, as far as the log says
    two_policies: bool = False  # ratios are to the sampler, with no third policy


def gather(
    path: Path, measured: Iterable[tuple[int, Mapping[str, Any]]]
) -> tuple[list[Row], list[str], str | None]:
    """Rows of a log by update, under our names; remarks; and the trainer that its names tell.

    Parts of one update are joined. A run that was resumed repeats some updates: the later count.

    Raises:
      ValueError: the log holds no measurement of reinforcement learning, or two runs.

    Example:
      >>> rows, *_ = gather(Path("a"), [(1, {"actor/pg_clipfrac": 0.1}), (1, {"entropy": 2.0})])
      >>> rows
      [{'step': 1, 'trustclip/gated': 0.1, 'entropy': 2.0}]
      >>> gather(Path("a"), [(1, {"entropy": 2.0}), (2, {}), (1, {"entropy": 3.0})])
      Traceback (most recent call last):
      ...
      ValueError: a holds two runs: update 1 comes after update 2; split it, or log each run apart.
    """
    by_step: dict[int, Row] = {}
    measured = list(measured)
    keys: dict[str, None] = dict.fromkeys(key for _, values in measured for key in values)
    trainer = names.trainer_of(list(keys))
    remarks: list[str] = []
    last: int | None = None
    for step, values in measured:
        metrics = {key: v for key, v in values.items() if key != "step"}
        row = names.translate(metrics, trainer)
        if last is not None and step < last:
            if step <= min(by_step):
                raise ValueError(
                    f"{path} holds two runs: update {step} comes after update {last}; split it, or "
                    "log each run apart."
                )
            remarks.append(f"resumed at update {step}: the later values count")
            by_step = {s: kept for s, kept in by_step.items() if s < step}
        present = by_step.setdefault(step, {"step": step})
        _require_plausible(path, present, row)
        present |= row
        last = step
    rows = [row for row in by_step.values() if row.keys() & names.ANSWERS]
    if not rows:
        raise ValueError(f"{path} {names.nothing_of(list(keys))}")
    return rows, remarks, trainer


def _require_plausible(path: Path, present: Row, row: Row) -> None:
    """Refuse a second, different value of one update's metric, and a share in percent."""
    for key in sorted(row.keys() & names.SHARES):
        if not -1e-6 <= row[key] <= 1 + 1e-6:  # float32 rounds
            where = f"{key} of update {present['step']}"
            raise ValueError(f"{path}: {where} is {row[key]:g}, and a share is from 0 to 1.")
    for key in sorted(present.keys() & row.keys() & names.ANSWERS):
        if present[key] != row[key]:
            raise ValueError(
                f"{path} holds two runs: {key} of update {present['step']} stands there as "
                f"{present[key]:g} and as {row[key]:g}; split it, or log each run apart."
            )


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among logged values that can be computed with; a bool is none."""
    return {
        str(key): float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= BEYOND
    }


def first_row(head: bytes) -> Row:
    """The object in the first line of a file; empty where that line is none."""
    line, newline, _ = head.partition(b"\n")
    return (parse_line(line) if newline else None) or {}
