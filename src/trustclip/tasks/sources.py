"""Problems from files and from the hub; a bad row is quarantined with its file, line and reason."""

import codecs
import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from trustclip.names import nearest
from trustclip.tasks.hub import (
    HUB_SOURCES,
    HubSource,
    ParsedRow,
    RowError,
    clean_answer,
    hub_rows,
    hub_source,
    is_numeric,
    named_after,
    parse_row,
)
from trustclip.tasks.problem import Problem

MAX_LINE_BYTES = 2**24
START_CHARS = 200
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BadRow:
    """A quarantined row, one line of ``quarantine.jsonl``.

    Args:
      file: path or hub id.
      line: 1-based line of the file; row number in parquet, JSON arrays and hub data sets.
      reason: what is wrong with it.
      start: the row's first 200 characters.
    """

    file: str
    line: int
    reason: str
    start: str


class TooManyBadRows(ValueError):
    """More of a source's rows were bad (``bad_rows``) than allowed (``limit``)."""

    def __init__(self, file: str, bad_rows: list[BadRow], limit: int):
        self.bad_rows = bad_rows
        self.limit = limit
        super().__init__(
            f"{file}: {len(bad_rows)} bad rows, at most {limit} allowed; {_first_reasons(bad_rows)}"
        )


@dataclass(frozen=True)
class Loaded:
    """What a source gave.

    Args:
      problems: the good rows in their order, ids unique.
      bad_rows: the quarantined rows.
      duplicates: identical repeats left out.
      skipped: rows of a worked-solution source left out for a gold that is no number.
    """

    problems: list[Problem]
    bad_rows: list[BadRow]
    duplicates: int
    skipped: int


def load_problems(
    source: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    max_bad_rows: int = 100,
    quarantine: Path | None = None,
) -> list[Problem]:
    """Problems of a file, a known benchmark or a hub data set: ``read_problems(...).problems``.

    Args:
      source: a path ending in .jsonl, .json, .csv or .parquet; a known name (``amc23``,
        ``aime24``, ``aime25``, ``math500``, ``gsm8k``, ``dapo``, ``dapo_en``, ``openmath``); or a
        hub id ``owner/name`` or ``owner/name:config``.
      split: split of a hub data set, its usual one by default.
      limit: keep the first so many of the good problems.
      max_bad_rows: how many rows may be bad.
      quarantine: JSON-lines file the bad rows are added to.

    Returns:
      The problems, ids unique. Columns are found by the aliases of `Fields`; a row without an id
      gets ``<stem>-<line>``; integer-valued float golds (``142.0``) become integers.

    Raises:
      TooManyBadRows: more than ``max_bad_rows`` rows are bad.
      ValueError: no such source, an unreadable file, or not one good row.
    """
    loaded = read_problems(
        source, split=split, limit=limit, max_bad_rows=max_bad_rows, quarantine=quarantine
    )
    return loaded.problems


def load_task(
    name: str, data_dir: Path | str | None = None, *, quarantine: Path | None = None
) -> list[Problem]:
    """Problems of a task: ``<data_dir>/<name>*`` if there is such a file, else as `load_problems`.

    Of several files the one called ``<name>`` is taken, then ``<name>_<split>``. No row of a known
    benchmark may be bad: a mean over fewer problems would pass for the benchmark's.

    Args:
      name: a known name, the beginning of a file's name in ``data_dir``, a path or a hub id.
      data_dir: folder searched first.
      quarantine: JSON-lines file the bad rows are added to.

    Returns:
      The problems.

    Raises:
      ValueError: unknown name (the nearest known one is named), or several files fit.
    """
    local = task_file(name, Path(data_dir)) if data_dir is not None else None
    known = named_after(Path(local or name).stem) or hub_source(name)
    max_bad_rows = 0 if known is not None and known.kind == "benchmark" else 100
    return load_problems(str(local or name), max_bad_rows=max_bad_rows, quarantine=quarantine)


def read_problems(
    source: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    max_bad_rows: int = 100,
    quarantine: Path | None = None,
) -> Loaded:
    """Problems of a source with what was left out; arguments and errors as `load_problems`.

    The whole source is read whatever ``limit`` is, so that the same rows are bad.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1")
    if max_bad_rows < 0:
        raise ValueError(f"max_bad_rows is {max_bad_rows}, must be at least 0")
    file, stem, rules, rows = open_source(source, split)
    collector = _Collector(file, stem, rules, max_bad_rows)
    try:
        for line, row, text in rows:
            collector.add(line, row, text)
    finally:
        if quarantine is not None and collector.bad_rows:
            _write_quarantine(quarantine, collector.bad_rows)
    problems = list(collector.kept.values())[:limit]
    loaded = Loaded(problems, collector.bad_rows, collector.duplicates, collector.skipped)
    if not loaded.problems:
        raise ValueError(f"{file}: no usable problem; {_first_reasons(loaded.bad_rows)}")
    if loaded.bad_rows or loaded.duplicates:
        counts = len(loaded.bad_rows), loaded.duplicates
        _logger.warning("%s: left out %d bad rows and %d identical repeats", file, *counts)
    return loaded


# A row with its line, and its text where the file has one; a RowError where there is no row.
_Rows = Iterator[tuple[int, Any, str]]


def open_source(source: str, split: str | None) -> tuple[str, str, HubSource, _Rows]:
    """File, stem, rules and rows of a source; refuses one that is none, and reads nothing yet."""
    path = Path(source)
    entry = hub_source(source)
    if path.suffix.lower() in SUFFIXES or (source not in HUB_SOURCES and path.exists()):
        if split is not None:
            raise ValueError(f"split={split!r} is for hub data sets, {source} is a file")
        rules = named_after(path.stem) or HubSource(source)
        rules = HubSource(source, kind=rules.kind, integer=rules.integer)
        return source, path.stem, rules, _file_rows(path)
    if entry is None:
        raise ValueError(_unknown(source, HUB_SOURCES))
    stem = source if source in HUB_SOURCES else entry.path.rpartition("/")[2]
    rows = ((number, row, "") for number, row in enumerate(hub_rows(entry, split), start=1))
    return entry.path, stem, entry, rows


def task_file(name: str, data_dir: Path) -> Path | None:
    """The file in ``data_dir`` that holds a task, or None where only the hub has it."""
    if not data_dir.is_dir():
        raise ValueError(f"{data_dir} is not a folder")
    files = sorted(path for path in data_dir.iterdir() if path.suffix.lower() in SUFFIXES)
    fitting = [path for path in files if re.match(rf"{re.escape(name)}($|[_.-])", path.stem)]
    entry = hub_source(name)
    if not fitting and entry is None and Path(name).suffix.lower() not in SUFFIXES:
        raise ValueError(_unknown(name, [*HUB_SOURCES, *(path.stem for path in files)]))
    if len(fitting) > 1:
        usual = [name, f"{name}_{entry.split}"] if entry else [name]
        fitting = [path for stem in usual for path in fitting if path.stem == stem][:1] or fitting
    if len(fitting) > 1:
        raise ValueError(f"several files fit {name!r}: {', '.join(path.name for path in fitting)}")
    return fitting[0] if fitting else None


def _unknown(name: str, known: Iterable[str]) -> str:
    allowed = f"{', '.join(HUB_SOURCES)}, a file ({', '.join(SUFFIXES)}) or a hub id owner/name"
    return f"unknown problem source {name!r}{_nearest(name, known)}. Allowed: {allowed}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = nearest(name.lower(), known)
    return f" (did you mean {near!r}?)" if near else ""


def _file_rows(path: Path) -> _Rows:
    if not path.is_file():
        raise ValueError(_no_file(path))
    readers = (_jsonl_rows, _json_rows, _csv_rows, _parquet_rows)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: cannot read {suffix!r} files, only {', '.join(SUFFIXES)}")
    return readers[SUFFIXES.index(suffix)](path)


def _no_file(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder, a problem source is a file ({', '.join(SUFFIXES)})"
    if not path.parent.is_dir():
        return f"no file {path}: there is no folder {path.parent}"
    return f"no file {path}{_nearest(path.name, (other.name for other in path.parent.iterdir()))}"


def _jsonl_rows(path: Path) -> _Rows:
    with path.open("rb") as file:
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
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return RowError(f"invalid UTF-8 at byte {error.start + 1}")
    except RecursionError:
        return RowError("invalid JSON: nested too deeply")
    except ValueError as error:
        return RowError(f"invalid JSON: {error}")


def _json_rows(path: Path) -> _Rows:
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if not content.lstrip().startswith(b"["):
        yield from _jsonl_rows(path)
        return
    rows = _parse_json(content)
    if isinstance(rows, RowError):
        raise ValueError(f"{path}: {rows}")
    yield from ((number, row, "") for number, row in enumerate(rows, start=1))


def _csv_rows(path: Path) -> _Rows:
    # surrogateescape leaves a lone surrogate where a byte is invalid; the row check finds it.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
        except csv.Error as error:
            raise ValueError(f"{path}: invalid CSV header: {error}") from error
        next_line = reader.line_num + 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = RowError(f"invalid CSV: {error}")
            line, next_line = next_line, reader.line_num + 1
            if cells:
                yield line, _csv_row(header, cells), ""


def _csv_row(header: list[str], cells: list[str] | RowError) -> Mapping[str, str] | RowError:
    if isinstance(cells, RowError):
        return cells
    if len(cells) != len(header):
        return RowError(f"{len(cells)} cells, the header has {len(header)}")
    return dict(zip(header, cells, strict=True))


def _parquet_rows(path: Path) -> _Rows:
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


class _Collector:
    """Keeps good rows, quarantines bad ones, leaves identical repeats out."""

    def __init__(self, file: str, stem: str, rules: HubSource, max_bad_rows: int):
        self.file, self.stem, self.rules, self.max_bad_rows = file, stem, rules, max_bad_rows
        self.bad_rows: list[BadRow] = []
        self.duplicates = self.skipped = 0
        self.kept: dict[str, Problem] = {}
        self._lines: dict[str, int] = {}
        self._answers: dict[str, str] = {}
        self._ids: dict[str, list[str]] = {}
        self._seen: set[tuple[str, str, str]] = set()

    def add(self, line: int, row: Any, text: str) -> None:
        try:
            if isinstance(row, RowError):
                raise row
            self._accept(line, parse_row(row, self.rules.fields))
        except RowError as error:
            self._quarantine(line, str(error), text or ("" if row is error else repr(row)))

    def _accept(self, line: int, row: ParsedRow) -> None:
        text = " ".join(row.problem.split())
        solutions = self.rules.kind == "sft"
        # Before the gold is looked at, so that a bad row standing a hundred times counts once.
        repeat = (text, repr(row.answer), row.solution or "" if solutions else "")
        if repeat in self._seen:
            self.duplicates += 1
            return
        self._seen.add(repeat)
        if solutions and not is_numeric(row.answer):
            self.skipped += 1
            return
        answer = clean_answer(row.answer, integer=self.rules.integer)
        if self._answers.setdefault(text, answer) != answer:
            self._contradict(text, answer)
        if text in self._ids and not solutions:
            self.duplicates += 1
            return
        id = row.id or f"{self.stem}-{line}"
        if id in self._lines:
            raise RowError(f"duplicate id {id!r}, first on line {self._lines[id]}")
        self.kept[id] = Problem(id, row.problem, answer, row.solution)
        self._lines[id] = line
        self._ids.setdefault(text, []).append(id)

    def _contradict(self, text: str, answer: str) -> NoReturn:
        """Drops every row of a problem that stands with two golds: at most one can be right."""
        reason = f"same problem with answers {self._answers[text]!r} and {answer!r}"
        for id in self._ids.get(text, []):
            if (dropped := self.kept.pop(id, None)) is not None:
                self._quarantine(self._lines[id], reason, repr(asdict(dropped)))
        raise RowError(reason)

    def _quarantine(self, line: int, reason: str, text: str) -> None:
        self.bad_rows.append(BadRow(self.file, line, reason, text[:START_CHARS]))
        if len(self.bad_rows) > self.max_bad_rows:
            raise TooManyBadRows(self.file, self.bad_rows, self.max_bad_rows)


def _write_quarantine(path: Path, bad_rows: list[BadRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(row)) for row in bad_rows]
    # A resumed run meets the same rows again.
    written = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines if line not in written)


def _first_reasons(bad_rows: list[BadRow]) -> str:
    if not bad_rows:
        return "it has no rows"
    first = "; ".join(f"line {row.line}: {row.reason:.200}" for row in bad_rows[:3])
    return f"the first: {first}"
