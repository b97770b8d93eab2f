"""Rows of problem files: JSON lines, JSON, CSV and Parquet, each with its line."""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from trustclip.support import parquet, reading
from trustclip.support.names import nearest
from trustclip.train.problems.rows import RowError

#: A longer line is no row.
MAX_LINE_BYTES = 2**24
#: A JSON array is read as a whole; this is its largest size.
MAX_ARRAY_BYTES = 2**29
#: Characters of a row that its report shows.
START_CHARS = 200
#: Formats of files.
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

#: A row with its line (in CSV its last one), and its text where the file has one; a RowError where
#: there is no row.
Rows = Iterator[tuple[int, Any, str]]


def format_of(path: Path) -> str | None:
    """The suffix that determines the format of a file; None for an unknown one."""
    return suffix if (suffix := path.suffix.lower()) in SUFFIXES else None


def near_hint(name: str, names: Iterable[str]) -> str:
    """A hint with the nearest known name; empty where none is near."""
    near = nearest(name.lower(), names)
    return f" (did you mean {near!r}?)" if near else ""


def file_rows(path: Path) -> Rows:
    """Read the rows of a file by its suffix; raises ValueError where it cannot be read."""
    if not path.is_file():
        raise ValueError(_no_file(path))
    readers = (_jsonl_rows, _json_rows, _csv_rows, _parquet_rows)
    form = format_of(path)
    if form is None:
        raise ValueError(f"{path}: cannot read {path.suffix!r} files, only {', '.join(SUFFIXES)}")
    return readers[SUFFIXES.index(form)](path)


def numbered(rows: Iterable[Any]) -> Rows:
    """Rows that have no lines, with their numbers."""
    return ((number, row, "") for number, row in enumerate(rows, start=1))


#: A part of a file, as ``datasets`` writes parts of a split: ``[:200]``, ``[200:]``, ``[-10%:]``.
_PART = re.compile(r"(?:train)?\[(-?\d+%?)?:(-?\d+%?)?\]")


def part_of(path: Path, part: str) -> Rows:
    """The rows of a part of a file; a negative place counts from the end.

    Raises:
      ValueError: the part is written in another way, or the file cannot be read.
    """
    match = _PART.fullmatch(part.replace(" ", ""))
    if match is None:
        raise ValueError(
            f"{path} is a file, which has no split {part!r}; a part of it is {path.name}@[:200], "
            f"{path.name}@[200:] or {path.name}@[-10%:]"
        )
    rows = list(file_rows(path))
    places = [
        None if place is None
        else len(rows) * int(place[:-1]) // 100 if place.endswith("%")
        else int(place)
        for place in match.groups()
    ]  # fmt: skip
    return iter(rows[slice(*places)])


def _no_file(path: Path) -> str:
    if path.is_dir():
        return (
            f"{path} is a folder; a problem source is a file ({', '.join(SUFFIXES)}), and "
            "Dataset.to_parquet makes one of a data set that was saved to disk"
        )
    if path.exists():
        return f"{path} is not a regular file"
    if not path.parent.is_dir():
        return f"no file {path}: there is no folder {path.parent}"
    readable = (p.name for p in path.parent.iterdir() if format_of(p))
    return f"no file {path}{near_hint(path.name, readable)}"


def _jsonl_rows(path: Path) -> Rows:
    with reading.opened(path) as file:
        for number in count(1):
            line = file.readline(MAX_LINE_BYTES + 1)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{path}: line {number} is longer than {MAX_LINE_BYTES} bytes")
            if not line:
                return
            if text := line.removeprefix(codecs.BOM_UTF8).strip():
                start = text[: 4 * START_CHARS].decode("utf-8", errors="replace")
                yield number, _parse_json(text), start


def _parse_json(text: bytes) -> Any:
    try:
        return reading.parse_json(text, exact=True)
    except ValueError as error:
        return RowError(f"invalid JSON: {error}")


def _json_rows(path: Path) -> Rows:
    with reading.opened(path) as file:
        start = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(b"["):
            start += file.read(MAX_ARRAY_BYTES + 1)
    if not start.startswith(b"["):
        yield from _jsonl_rows(path)
        return
    if len(start) > MAX_ARRAY_BYTES:
        raise ValueError(
            f"{path}: larger than {MAX_ARRAY_BYTES // 2**20} MiB, which a JSON array may have; "
            "write it as JSON lines (.jsonl), one row a line"
        )
    rows = _parse_json(start)
    if isinstance(rows, RowError):
        raise ValueError(f"{path}: {rows}")
    yield from numbered(rows)


def _csv_rows(path: Path) -> Rows:
    # surrogateescape leaves a lone surrogate where a byte is invalid; the row check finds it.
    with io.TextIOWrapper(
        reading.opened(path), encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = list(reader.fieldnames or [])
        except csv.Error as error:
            raise ValueError(f"{path}: invalid CSV header: {error}") from error
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(f"{path}: the column {repeated[0]!r} occurs twice in the header")
        while True:
            try:
                row: Any = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = RowError(f"invalid CSV: {error}")
            else:
                if None in row or None in row.values():
                    row = RowError(f"not {len(names)} cells, as the header has")
            yield reader.reader.line_num, row, ""


def _parquet_rows(path: Path) -> Rows:
    yield from numbered(parquet.rows(path, most_bytes=MAX_ARRAY_BYTES))
