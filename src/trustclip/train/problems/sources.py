"""Problems from files and from the hub; a bad row is quarantined with its file, line and reason."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from trustclip.support.names import nearest
from trustclip.train.problems.files import (
    START_CHARS,
    SUFFIXES,
    Rows,
    file_rows,
    format_of,
    near_hint,
    numbered,
    part_of,
)
from trustclip.train.problems.generated import GENERATED
from trustclip.train.problems.hub import (
    HUB,
    HUB_SOURCES,
    HubSource,
    Use,
    hub_rows,
    hub_source,
    named_after,
)
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.rows import (
    ParsedRow,
    RowError,
    clean_answer,
    further,
    is_numeric,
    map_columns,
    parse_row,
)
from trustclip.train.problems.verify.equivalence import plain_text

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowSelection:
    """What to take of a row.

    Args:
      columns: the user's names of columns, by part; see
        `trustclip.train.problems.rows.map_columns`.
      answers: whether a row without a gold is a bad one.
      further: whether the row's other columns are kept, for reward functions.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    answers: bool = True
    further: bool = False


@dataclass(frozen=True)
class BadRow:
    """A quarantined row, one line of ``quarantine.jsonl``.

    Args:
      file: path or hub id.
      line: 1-based line of the file; row number in parquet, JSON arrays and hub data sets.
      start: the row's first 200 characters.
    """

    file: str
    line: int
    reason: str
    start: str


class TooManyBadRows(ValueError):
    """More of a source's rows were bad than allowed."""


def load_problems(
    source: str,
    *,
    use: Use = "train",
    limit: int | None = None,
    max_bad_rows: int = 100,
    quarantine: Path | None = None,
    selection: RowSelection = RowSelection(),
) -> list[Problem]:
    """Problems of a file, a known benchmark or a hub data set.

    The whole source is read whatever ``limit`` is, so that the same rows are bad.

    No row of a known benchmark that is evaluated on may be bad: a mean over fewer problems would
    pass for the benchmark's. It has its own columns and answers, whatever ``selection`` says.

    Args:
      source: a path ending in .jsonl, .json, .csv or .parquet; a known name (``amc23``,
        ``aime24``, ``aime25``, ``math500``, ``gsm8k``, ``dapo``, ``dapo_en``, ``openmath``); or a
        hub id ``owner/name`` or ``owner/name:config``, with ``hub:`` before it where a folder has
        that name. A split, or a part of one or of a file, is named behind ``@``:
        ``gsm8k@train[:1000]``, ``mine.jsonl@[200:]``.
      use: ``"train"`` reads the training split of a set that has splits, ``"test"`` its test split,
        unless the source names one.
      limit: keep only this many of the good problems, the first ones.
      max_bad_rows: how many rows may be bad.
      quarantine: JSON-lines file the bad rows are added to.
      selection: columns, where they have other names, and what else of a row is kept.

    Returns:
      The problems, ids unique. Columns are found by the aliases of `Fields`; a row without an id
      gets ``<stem>-<line>``; integer-valued float golds (``142.0``) become integers.

    Raises:
      TooManyBadRows: more than ``max_bad_rows`` rows are bad.
      ValueError: no such source, split or column, an unreadable file, or not one good row.
    """
    file, stem, rules, rows = open_source(source, use)
    if use == "test" and rules.kind == "benchmark":
        max_bad_rows, selection = 0, RowSelection()
    rules = replace(rules, fields=map_columns(rules.fields, selection.columns))
    collector = _Collector(file, stem, rules, max_bad_rows, selection)
    try:
        for line, row, text in rows:
            collector.add(line, row, text)
    finally:
        if quarantine is not None and collector.bad_rows:
            _write_quarantine(quarantine, collector.bad_rows)
        collector.check_columns()
    problems = list(collector.problems.values())[:limit]
    bad_rows, duplicates = collector.bad_rows, collector.duplicates
    if not problems:
        raise ValueError(f"{source} has no usable problem: {_first_reasons(bad_rows)}")
    if bad_rows or duplicates:
        text = "%s: bad rows left out: %d; identical repeats left out: %d"
        _logger.warning(text, file, len(bad_rows), duplicates)
    if text_golds := sum(plain_text(problem.answer) is not None for problem in problems):
        _logger.warning("%s: %d golds are not mathematical: compared as text", file, text_golds)
    return problems


def open_source(source: str, use: Use) -> tuple[str, str, HubSource, Rows]:
    """File, stem, rules and rows of a source; refuses an unknown one, and reads nothing yet."""
    if "@" in source and not Path(source).exists():
        name, _, split = source.rpartition("@")
    else:
        name, split = source, None
    path, entry = Path(name), hub_source(source)
    of_hub = name.startswith(HUB) or name in HUB_SOURCES
    if format_of(path) or (path.exists() and not of_hub):
        rules = named_after(path.stem) or HubSource(name)
        rules = HubSource(name, kind=rules.kind, integer=rules.integer)
        rows = file_rows(path) if split is None or path.is_dir() else part_of(path, split)
        return name, path.stem, rules, rows
    if entry is None:
        raise ValueError(
            f"unknown problem source {source!r}{near_hint(source, HUB_SOURCES)}. Allowed: "
            f"{', '.join(HUB_SOURCES)}, a file ({', '.join(SUFFIXES)}), a hub id owner/name (each "
            "with @SPLIT if it has splits), or, where problems may be generated, "
            f"{', '.join(GENERATED)}."
        )
    stem = name if name in HUB_SOURCES else entry.path.rpartition("/")[2]
    rows = numbered(hub_rows(entry, entry.split(use)))
    return entry.path, stem, entry, rows


class _Collector:
    """Keeps good rows, quarantines bad ones and drops identical repeats."""

    def __init__(
        self, file: str, stem: str, rules: HubSource, max_bad_rows: int, selection: RowSelection
    ) -> None:
        self.file, self.stem, self.rules, self.max_bad_rows = file, stem, rules, max_bad_rows
        self.selection, self.columns = selection, set[str]()
        self.bad_rows: list[BadRow] = []
        self.duplicates = 0
        self.problems: dict[str, Problem] = {}
        self._lines: dict[str, int] = {}
        self._answers: dict[str, str] = {}
        self._ids: dict[str, list[str]] = {}
        self._rows: set[tuple[str, ...]] = set()

    def add(self, line: int, row: Any, text: str) -> None:
        try:
            if isinstance(row, RowError):
                raise row
            if isinstance(row, Mapping):
                self.columns.update(row)
            fields, selection = self.rules.fields, self.selection
            parsed = parse_row(row, fields, selection.answers)
            if selection.further:
                parsed = replace(parsed, columns=further(row, fields, selection.columns))
            self._accept(line, parsed)
        except RowError as error:
            self._quarantine(line, str(error), text or ("" if row is error else repr(row)))

    def check_columns(self) -> None:
        """Refuse a column of the user's that no row has."""
        for part, name in self.selection.columns.items():
            if self.columns and not self.columns & {name, name.partition(".")[0]}:
                near = nearest(name, self.columns)
                hint = f" Did you mean {near!r}?" if near else ""
                raise ValueError(
                    f"{self.file}: `columns` takes {part} from {name!r}, and there is no such "
                    f"column.{hint} Columns: {', '.join(sorted(map(str, self.columns)))}."
                )

    def _accept(self, line: int, row: ParsedRow) -> None:
        text = " ".join(row.problem.split())
        solutions = self.rules.kind == "sft"
        # Before the gold is checked, so that a bad row that occurs a hundred times counts once.
        columns = repr(row.columns)  # of one text with other tests, say, each is a problem
        repeat = (text, columns, repr(row.answer), row.solution or "" if solutions else "")
        if repeat in self._rows:
            self.duplicates += 1
            return
        self._rows.add(repeat)
        if solutions and not is_numeric(row.answer):
            return
        has_answer = row.answer is not None or self.selection.answers
        answer = clean_answer(row.answer, integer=self.rules.integer) if has_answer else ""
        if self._answers.setdefault(text, answer) != answer:
            self._contradict(text, answer)
        if (text, columns) in self._rows and not solutions:
            self.duplicates += 1
            return
        id = row.id or f"{self.stem}-{line}"
        if id in self._lines:
            raise RowError(f"duplicate id {id!r}, first on line {self._lines[id]}")
        self.problems[id] = Problem(id, row.problem, answer, row.solution, row.columns)
        self._rows.add((text, columns))
        self._lines[id] = line
        self._ids.setdefault(text, []).append(id)

    def _contradict(self, text: str, answer: str) -> NoReturn:
        """Drop every row of a problem that has two golds: at most one can be right."""
        reason = f"same problem with answers {self._answers[text]!r} and {answer!r}"
        for id in self._ids.get(text, []):
            if (dropped := self.problems.pop(id, None)) is not None:
                self._quarantine(self._lines[id], reason, repr(asdict(dropped)))
        raise RowError(reason)

    def _quarantine(self, line: int, reason: str, text: str) -> None:
        self.bad_rows.append(BadRow(self.file, line, reason, text[:START_CHARS]))
        if len(self.bad_rows) > self.max_bad_rows:
            raise TooManyBadRows(
                f"{self.file} has more bad rows than max_bad_rows allows ({self.max_bad_rows}): "
                f"{_first_reasons(self.bad_rows)}"
            )


def _write_quarantine(path: Path, bad_rows: list[BadRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(row)) for row in bad_rows]
    # A resumed run finds the same rows again.
    present = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines if line not in present)


def _first_reasons(bad_rows: list[BadRow]) -> str:
    if not bad_rows:
        return "it has no rows"
    first = "; ".join(f"line {row.line}: {row.reason:.200}" for row in bad_rows[:3])
    return f"the first bad {'row is' if len(bad_rows) == 1 else 'rows are'} {first}"
