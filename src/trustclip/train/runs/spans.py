"""Which bytes of a file are not those that were hashed: located between two recorded sizes."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from trustclip.logs.writing.extents import Link, links
from trustclip.support.jsonl import parse_line

_BLOCK = 2**20


@dataclass(frozen=True)
class Record:
    """What a checkpoint, or the summary, records of a file."""

    bytes: int  # size of the file then
    sha256: str | None  # of these bytes, in hexadecimal; None in checkpoints of trustclip 0.1
    chain: list[Link]  # of `trustclip.logs.writing.extents.Extent`
    source: str  # what records it, in words

    @classmethod
    def of(cls, extent: Any, source: str) -> Self:
        """The record in an extent that was read from a file.

        Raises:
          ValueError, KeyError, TypeError: it is none.
        """
        if isinstance(extent, int):
            return cls(extent, None, [], source)
        chain = [[int(size), bytes.fromhex(link).hex()] for size, link in links(extent)]
        return cls(int(extent["bytes"]), str(extent["sha256"]), chain, source)


@dataclass(frozen=True)
class Span:
    """Bytes of a file that are not those recorded."""

    start: int
    end: int
    since: str
    until: str

    def text(self, path: Path) -> str:
        """The span in words: by lines and updates where the file has rows."""
        between = f", between {self.since} and {self.until}"
        if not (self.since and self.until):
            between = f", after {self.since}" * bool(self.since)
            between += f", before {self.until}" * bool(self.until)
        if path.suffix != ".jsonl":
            return f"other bytes than the run wrote{between}"
        before, rows = 0, list[bytes]()
        with path.open("rb") as file:
            for line in file:
                if file.tell() <= self.start:
                    before += 1
                elif file.tell() - len(line) < self.end:
                    rows.append(line)
        numbers = [row.get("step") for row in map(parse_line, rows) if row]
        steps = [step for step in numbers if isinstance(step, int)]
        updates = f" (updates {min(steps)} to {max(steps)})" if steps else ""
        return f"lines {before + 1} to {before + max(len(rows), 1)}{updates}{between}"


def changed_spans(path: Path, records: Sequence[Record]) -> list[Span]:
    """Where a file is not as recorded, as narrow as the records tell; bytes after them are free.

    The chain of the longest record locates, and every hash is compared.

    Example:
      >>> import hashlib, tempfile
      >>> path = Path(tempfile.mkdtemp(), "rows.jsonl")
      >>> _ = path.write_bytes(b"1\\n3\\n")
      >>> sha256 = hashlib.sha256(b"1\\n2\\n").hexdigest()
      >>> changed_spans(path, [Record.of({"bytes": 4, "sha256": sha256}, "step 2")])[0].text(path)
      'lines 1 to 2, before step 2'
    """
    hashed = [record for record in records if record.sha256 is not None]
    if not hashed:
        return []
    longest = max(hashed, key=lambda record: (len(record.chain), record.bytes))
    chain: dict[int, str] = {size: link for size, link in longest.chain}
    names = {record.bytes: record.source for record in reversed(hashed)}
    spans, start, good = list[Span](), 0, 0
    whole, link = hashlib.sha256(), hashlib.sha256()
    with path.open("rb") as file:
        for end in sorted({*chain, *(record.bytes for record in hashed)}):
            for block in _blocks(file, end - file.tell()):
                whole.update(block)
                link.update(block)
            if end in chain:
                if link.hexdigest() != chain[end]:
                    spans.append(Span(start, end, names.get(start, ""), names.get(end, "")))
                start, link = end, hashlib.sha256(bytes.fromhex(chain[end]))
            expected = {record.sha256 for record in hashed if record.bytes == end}
            if expected - {whole.hexdigest()} and not spans:
                spans.append(Span(good, end, names.get(good, ""), names.get(end, "")))
            good = end
    return spans


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block
