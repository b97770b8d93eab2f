"""Rows of problem files: JSON lines, JSON, CSV and Parquet, each with its line."""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

from trustclip.support.names import nearest
from trustclip.train.problems.rows import RowError

MAX_LINE_BYTES = 2**24
#: A JSON array is read as a whole; this is its largest size, unpacked.
MAX_ARRAY_BYTES = 2**29
#: Characters of a row that its report shows.
START_CHARS = 200
#: Formats of files; the text ones may be compressed, with a further .gz.
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
# Either marks a folder of `datasets.save_to_disk`.
_SAVED = ("state.json", "dataset_dict.json")

# A row with its line, and its text where the file has one; a RowError where there is no row.
Rows = Iterator[tuple[int, Any, str]]


def format_of(path: Path) -> str | None:
    """The suffix that determines the format of a file, without .gz; None for an unknown one."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes and suffixes[-1] in SUFFIXES else None


def stem_of(path: Path) -> str:
    """Name of a file without its suffix, also where it is compressed.

    Example:
      >>> stem_of(Path("data/mine.v2.jsonl.gz"))
      'mine.v2'
    """
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def is_saved(path: Path) -> bool:
    """Whether a folder was written by ``datasets.save_to_disk``."""
    return path.is_dir() and any((path / mark).is_file() for mark in _SAVED)


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
    if form is None or (form == ".parquet" and path.suffix.lower() == ".gz"):
        kind = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
        raise ValueError(f"{path}: cannot read {kind!r} files, only {', '.join(SUFFIXES)}")
    return _readable(path, readers[SUFFIXES.index(form)](path))


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
    return _slice(file_rows(path), match[1], match[2])


def _slice(rows: Rows, first: str | None, last: str | None) -> Rows:
    if not any("%" in (place or "") or (place or "").startswith("-") for place in (first, last)):
        yield from islice(rows, int(first or 0), None if last is None else int(last))
        return
    all_rows = list(rows)
    bounds = [
        None if place is None
        else len(all_rows) * int(place[:-1]) // 100 if place.endswith("%")
        else int(place)
        for place in (first, last)
    ]  # fmt: skip
    yield from all_rows[slice(*bounds)]


def _readable(path: Path, rows: Rows) -> Rows:
    try:
        yield from rows
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _no_file(path: Path) -> str:
    if path.is_dir():
        return (
            f"{path} is a folder that datasets.save_to_disk has not written; a problem source is a "
            f"file ({', '.join(SUFFIXES)}) or such a folder"
        )
    if path.exists():
        return f"{path} is not a regular file"
    if not path.parent.is_dir():
        return f"no file {path}: there is no folder {path.parent}"
    readable = (p.name for p in path.parent.iterdir() if format_of(p) or is_saved(p))
    return f"no file {path}{near_hint(path.name, readable)}"


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _jsonl_rows(path: Path) -> Rows:
    with _open(path) as file:
        for number in count(1):
            if not (line := file.readline(MAX_LINE_BYTES)):
                return
            text = line[: 4 * START_CHARS].decode("utf-8", errors="replace").rstrip()
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield number, RowError(f"line longer than {MAX_LINE_BYTES} bytes"), text
            elif line := (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                yield number, _parse_json(line), text


def _parse_json(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_object)
    except RowError as error:
        return error
    except UnicodeDecodeError as error:
        return RowError(f"invalid UTF-8 at byte {error.start + 1}")
    except RecursionError:
        return RowError("invalid JSON: nested too deeply")
    except ValueError as error:
        return RowError(f"invalid JSON: {error}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        repeated = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise RowError(f"the key {repeated!r} occurs twice")
    return row


def _json_rows(path: Path) -> Rows:
    with _open(path) as file:
        start = file.read(MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)
        if not start.lstrip().startswith(b"["):
            yield from _jsonl_rows(path)
            return
        content = _read_array(path, start, file)
    rows = _parse_json(content)
    if isinstance(rows, RowError):
        raise ValueError(f"{path}: {rows}")
    yield from ((number, row, "") for number, row in enumerate(rows, start=1))


def _read_array(path: Path, start: bytes, file: BinaryIO) -> bytes:
    """The content of a file that begins with ``start``, up to `MAX_ARRAY_BYTES`."""
    parts, size = [start], len(start)
    while part := file.read(MAX_LINE_BYTES):
        size += len(part)
        if size > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{path}: larger than {MAX_ARRAY_BYTES // 2**20} MiB unpacked, which a JSON array "
                "may have; write it as JSON lines (.jsonl), one row a line"
            )
        parts.append(part)
    return b"".join(parts)


def _csv_rows(path: Path) -> Rows:
    # surrogateescape leaves a lone surrogate where a byte is invalid; the row check finds it.
    with io.TextIOWrapper(
        _open(path), encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
        except csv.Error as error:
            raise ValueError(f"{path}: invalid CSV header: {error}") from error
        if repeated := [name for name, times in Counter(header).items() if times > 1]:
            raise ValueError(f"{path}: the column {repeated[0]!r} occurs twice in the header")
        next_line = reader.line_num + 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = RowError(f"invalid CSV: {error}")
            line, next_line = next_line, reader.line_num + 1
            if isinstance(cells, RowError):
                yield line, cells, ""
            elif cells and len(cells) != len(header):
                yield line, RowError(f"{len(cells)} cells, the header has {len(header)}"), ""
            elif cells:
                yield line, dict(zip(header, cells, strict=True)), ""


def _parquet_rows(path: Path) -> Rows:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("parquet needs pyarrow: pip install 'trustclip[train]'") from error
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for index in range(batch.num_rows):
                number += 1
                try:
                    row = batch.slice(index, 1).to_pylist()[0]
                except UnicodeDecodeError as error:
                    row = RowError(f"invalid UTF-8: {error.reason}")
                yield number, row, ""
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file: {error}") from error
