"""Files of a run: JSON lines, whole files written at once, and the mappings they hold."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trustclip.support import reading
from trustclip.support.flush import flush_way
from trustclip.support.inside import itself, part_of

Row = dict[str, Any]


class Line(NamedTuple):
    """One line of a JSON-lines file."""

    number: int  # among those read, from 1
    offset: int  # of its first byte
    content: bytes  # with the newline that ends it
    row: Row | None  # its object; None where it holds none

    @property
    def torn(self) -> bool:
        """Whether the newline is missing: its writer is still busy, or was killed."""
        return not self.content.endswith(b"\n")


def scan(path: Path, start: int = 0) -> Iterator[Line]:
    """Lines of a JSON-lines file, readable or not, from a byte on; empty ones are left out.

    Raises:
      ValueError: it is no regular file, or has a line longer than `trustclip.support.reading`
        allows.
    """
    # By bytes: a completion may hold characters that text mode takes for the end of a line, and a
    # kill may cut one in half.
    offset = start
    for number, content in enumerate(reading.lines(path, start), start=1):
        if content.strip():
            yield Line(number, offset, content, parse_line(content))
        offset += len(content)


def parse_line(line: bytes) -> Row | None:
    """The JSON object in a line; None if there is none, or none within bounds."""
    try:
        row = reading.parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_jsonl(path: Path) -> list[Row]:
    """Rows of a JSON-lines file; a last line torn by a kill is left out.

    Raises:
      ValueError: a whole line is not a JSON object.
    """
    return [row for _, row in numbered(path)]


def numbered(path: Path, remarks: list[str] | None = None) -> Iterator[tuple[int, Row]]:
    """Rows of a JSON-lines file with the numbers of their lines; see `read_jsonl`.

    A remark about a last line that is left out is added to ``remarks``.
    """
    for line in scan(path):
        if line.row is not None:
            yield line.number, line.row
        elif not line.torn:
            raise ValueError(f"{path}:{line.number} is not a JSON object.")
        elif remarks is not None:
            remarks.append(f"{path.name}: the last line is half written, and left out")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows as JSON lines, in one write, flushed.

    A last line that a kill or a full disk has torn is removed first: rows appended to it would be
    lost with it. A number that is not finite becomes null: JSON has no way to write it.
    """
    with _path_in_errors(path), open(path, "a+b", opener=itself) as file:
        _repair_end(file, path)
        file.write(_lines(rows))
        file.flush()


def extend_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows as JSON lines, all or none of them, whatever ends the process or the machine.

    The file is written anew: for short ones that no checkpoint cuts back.
    """
    lines = scan(path) if path.exists() else ()
    content = (line.content.rstrip(b"\n") + b"\n" for line in lines if line.row is not None)
    write_bytes(path, b"".join(content) + _lines(rows))


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = "".join(json.dumps(plain(row), ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8")


@contextlib.contextmanager
def _path_in_errors(path: Path) -> Iterator[None]:
    """Add the path to errors of the operating system: a failed write does not name it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _repair_end(file: Any, path: Path) -> None:
    """Cut a torn last line off; one that only lacks its newline gets it."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        torn = [line for line in scan(path) if line.torn]
        if torn and torn[0].row is None:
            file.truncate(torn[0].offset)
        else:
            file.write(b"\n")


def read_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML or JSON file; empty where there is no file, or nothing in it.

    Raises:
      ValueError: the file cannot be read, or holds something else; the message names it.
    """
    if not path.is_file():
        return {}
    try:
        if path.suffix == ".json":
            value = reading.parse_json(reading.content(path))
        else:
            text = reading.content(path, reading.LONGEST_YAML)
            value = reading.parse_yaml(text.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: line {error.lineno}: {error.msg}.") from error
    except yaml.YAMLError as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{path} is damaged: {where}{problem or 'no YAML'}.") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).removesuffix('.')}.") from error
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{path} is damaged: it holds a {type(value).__name__}, not a mapping.")
    return value or {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with _path_in_errors(path):
        part = part_of(path)
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush_way(path)  # a folder on the way may be new, and its name is not on the disk yet


def plain(value: Any) -> Any:
    """A value as JSON and YAML hold it: text keys and paths, lists, null for no number at all.

    Settings become mappings, and a method becomes ``{"name": ..., **hyper-parameters}``.
    """
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not abs(value) <= reading.BEYOND:
        return None
    return value
