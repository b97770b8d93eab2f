"""Completions of a run for the page: a stated number of them, spread evenly over the run."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustclip.logs.forms import GATES
from trustclip.support.inside import Inside
from trustclip.support.jsonl import Line, Row, parse_line, read_jsonl, scan
from trustclip.support.reading import opened
from trustclip.support.schemas import conform

#: What identifies a completion within its run.
Key = tuple[Any, ...]

#: Maximum number of completions of one run in the page.
MAX_ROWS = 5000
#: Maximum number of characters of completions and problems in the page, over all runs.
MAX_CHARACTERS = 16_000_000
#: Characters shown of the beginning and of the end of one completion.
HEAD, TAIL = 12_000, 4_000

#: Columns of a completion in the page.
COLUMNS = (
    "stage", "step", "task", "id", "k", "problem", "gold", "extracted", "tokens", "truncated",
    "right", "gated", "response",
)  # fmt: skip


#: Files of a run's samples: of the first rank, and of each other one.
SHARD = re.compile(r"samples(-rank\d+)?\.jsonl")


def shards(folder: Path) -> list[Path]:
    """Files of a run's samples, one of each rank; a user's own copies are not."""
    paths = Inside(folder).files("samples*.jsonl")
    return sorted((p for p in paths if SHARD.fullmatch(p.name)), key=lambda path: path.stem)


def sample_rows(folder: Path) -> Iterator[Row]:
    """Rows of all shards of a run's samples, in the order they were written."""
    for path in shards(folder):
        yield from read_jsonl(path)


@dataclass(frozen=True)
class Place:
    """Location of a completion: shard, byte offset and length; and its group."""

    shard: Path
    offset: int
    length: int
    group: tuple[Any, ...]


@dataclass
class Samples:
    """Locations of the completions of a run, and what an evaluation needs of them."""

    #: By (stage, step, task, problem, number); the later one of a completion written twice.
    places: dict[Key, Place] = field(default_factory=dict)
    #: Rows of evaluations by step, without their texts.
    answers: dict[int | None, dict[Key, Row]] = field(default_factory=dict)
    unreadable: int = 0  # lines left out
    repeated: int = 0  # answers of evaluations written twice, of which the later counts
    odd: list[str] = field(default_factory=list)  # answers neither 0 nor 1, in words

    @classmethod
    def read(cls, folder: Path) -> "Samples":
        """Samples of a run directory, from all shards, keeping no text in memory."""
        samples = cls()
        for shard in shards(folder):
            for line in scan(shard):
                if line.row is None:
                    samples.unreadable += 1
                else:
                    samples._add(shard, line, line.row)
        return samples

    def _add(self, shard: Path, line: Line, row: Row) -> None:
        stage, step, task = _text(row.get("stage")), whole(row.get("step")), _text(row.get("task"))
        number = _number(row)
        unnamed = (shard.name, line.offset) if number is None else None
        identity = _text(row.get("id")) if task is not None else None
        key = (stage, step, task, identity, number, unnamed)
        self.places[key] = Place(shard, line.offset, len(line.content), (stage, step, task))
        if task is None or "correct" not in row:
            return
        if row["correct"] not in (0, 1):
            value = "null or NaN" if row["correct"] is None else repr(row["correct"])
            self.odd.append(f"`correct` is {value} in answer {number} to {task}: {identity}")
        else:
            tokens = whole(row.get("tokens"))
            brief = {
                "task": task,
                "id": str(identity),
                "k": number,
                "text": fingerprint(str(row.get("response"))),
                "correct": int(row["correct"]),
                "tokens": float("nan") if tokens is None else tokens,
                "truncated": bool(row.get("truncated")),
                "extracted": None if row.get("extracted") is None else "",
                "judged": row.get("judged"),
            }
            answers = self.answers.setdefault(step, {})
            self.repeated += key in answers
            answers[key] = brief

    def chosen(self, characters: int) -> list[Place]:
        """Locations of the completions to show, as many from each evaluation and generation."""
        rank: dict[tuple[Any, ...], int] = defaultdict(int)
        group_order: dict[tuple[Any, ...], float] = {}
        queue = []
        for number, place in enumerate(self.places.values()):
            # Multiples of the golden ratio are spread evenly at every length.
            order = group_order.setdefault(place.group, len(group_order) * 0.6180339887 % 1)
            queue.append((rank[place.group], order, number, place))
            rank[place.group] += 1
        picks, room = [], characters
        for _, _, number, place in sorted(queue, key=lambda item: item[:3])[:MAX_ROWS]:
            room -= min(place.length, HEAD + TAIL)
            if room < 0:
                break
            picks.append((number, place))
        return [place for _, place in sorted(picks, key=lambda item: item[0])]


def fingerprint(text: str) -> str:
    """Sixteen hexadecimal digits that identify a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def page_rows(
    folder: Path, samples: Samples, characters: int, problems: dict[str, int]
) -> list[list[Any]]:
    """Rows of `COLUMNS` of the completions that the page shows of a run.

    Texts of problems become numbers in ``problems``, each held once however many runs used it.
    """
    gated = _gated_shares(folder)
    texts = problem_texts(folder)
    rows = []
    for row in _reread(samples.chosen(characters)):
        stage, task, identity = (_text(row.get(name)) for name in ("stage", "task", "id"))
        step, right = whole(row.get("step")), row.get("correct", row.get("reward"))
        text = problem_of(row, texts)
        problem = None if text is None else problems.setdefault(text[: HEAD + TAIL], len(problems))
        rows.append(
            [
                stage, step, task, identity, _number(row), problem,
                _text(row.get("gold")), _text(row.get("extracted")), whole(row.get("tokens")),
                bool(row.get("truncated")), right if isinstance(right, int | float) else None,
                gated.get((step, whole(row.get("index")))) if stage == "rl" else None,
                cut(str(row.get("response", ""))),
            ]
        )  # fmt: skip
    return rows


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:HEAD]


def whole(value: object) -> int | None:
    """A whole number of a stranger's row; None for any other value."""
    return value if isinstance(value, int) else None


def _number(row: Row) -> int | None:
    """Number of a completion among those of its problem, or of its generation."""
    return whole(row.get("k", row.get("index")))


def cut(text: str) -> str | list[Any]:
    """A text, or [beginning, number of omitted characters, end] if it is too long.

    Example:
      >>> cut("short"), [len(part) if isinstance(part, str) else part for part in cut("x" * 20_000)]
      ('short', [12000, 4000, 4000])
    """
    omitted = len(text) - HEAD - TAIL
    return text if omitted <= 0 else [text[:HEAD], omitted, text[-TAIL:]]


def _reread(places: list[Place]) -> Iterator[Row]:
    by_shard: dict[Path, list[Place]] = defaultdict(list)
    for place in places:
        by_shard[place.shard].append(place)
    for shard, here in by_shard.items():
        with opened(shard) as file:
            for place in here:
                file.seek(place.offset)
                if (row := parse_line(file.read(place.length))) is not None:
                    yield row


def problem_rows(folder: Path) -> Iterator[tuple[tuple[str | None, str | None], Row]]:
    """Rows of the problems of a run, each with its task and id."""
    path = Inside(folder).file("problems.jsonl")
    for line in scan(path) if path.exists() else ():
        if (row := line.row) is not None and "id" in row:
            yield (_text(row.get("task")), _text(row["id"])), row


def problem_texts(folder: Path) -> Mapping[tuple[Any, Any], str]:
    """Texts of the problems of a run, by task and id."""
    return {at: str(row["problem"]) for at, row in problem_rows(folder) if "problem" in row}


def problem_of(row: Row, texts: Mapping[tuple[Any, Any], str]) -> str | None:
    """The text of a completion's problem, of its task or of all, if it was recorded."""
    task, identity = _text(row.get("task")), _text(row.get("id"))
    return texts.get((task, identity), texts.get((None, identity)))


def gate_rows(folder: Path) -> list[Row]:
    """Rows of ``gates.jsonl`` of a run, if there is one: what the gate did in each update.

    Raises:
      ValueError: a row is not as a run writes it.
    """
    path = Inside(folder).file("gates.jsonl")
    rows = read_jsonl(path) if path.exists() else []
    for number, row in enumerate(rows, start=1):
        conform(row, GATES, f"{path}, row {number}")
    return rows


def _gated_shares(folder: Path) -> dict[tuple[Any, Any], float]:
    """Gated share of each completion by (generation, index): mean over the updates it was in."""
    updates = {row.get("step"): row for row in gate_rows(folder)}
    shares: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for row in updates.values():
        columns = (row.get("generated", ()), row.get("index", ()), row.get("gated", ()))
        for generated, index, share in zip(*columns, strict=False):
            if share is not None:
                shares[generated, index].append(share)
    return {key: round(sum(values) / len(values), 5) for key, values in shares.items()}
