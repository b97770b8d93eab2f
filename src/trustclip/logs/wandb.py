"""wandb's offline files, ``run-*.wandb``: its own records in the frames of a LevelDB log."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trustclip.logs.log import Log, Source, numbers
from trustclip.logs.metrics import log_of
from trustclip.support.inside import Inside
from trustclip.support.reading import LONGEST, opened, parse_json

#: The file begins with this, a magic number and the version of the format.
_HEAD = b":W&B"
_HEADER = struct.Struct("<4sHB")
_MAGIC, _VERSION = 0xBEE1, 0
#: A block, and the head of a fragment: checksum, length, kind.
_BLOCK = 32 * 1024
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Keys of a history that count updates, best first.
_STEPS = ("train/global_step", "training/global_step", "global_step", "_step")


def _read(path: Path) -> Log:
    """Read an offline run.

    Raises:
      ValueError: it is of another version, or holds no metric of reinforcement learning.
    """
    settings: dict[str, Any] = {}
    remarks: list[str] = []
    measured = history(path, remarks, settings)
    return log_of(path, "wandb offline run", measured, settings, remarks)


def history(
    path: Path, remarks: list[str], settings: dict[str, Any] | None = None
) -> Iterator[tuple[int, dict[str, float]]]:
    """Step and numbers of every row that was logged, whatever they are of; adds to the others."""
    for record in _records(path, remarks):
        kind = record.WhichOneof("record_type")
        if kind in ("run", "config") and settings is not None:
            settings |= _values((record.run.config if kind == "run" else record.config).update)
        elif kind == "history":
            values = _values(record.history.item)
            counted = (values[key] for key in _STEPS if values.get(key) is not None)
            step = next(counted, record.history.step.num)
            if isinstance(step, int):
                yield step, numbers(values)


def _values(items: Any) -> dict[str, Any]:
    """Values of a record by name."""
    values = {}
    for item in items:
        try:
            values[item.key or "/".join(item.nested_key)] = parse_json(item.value_json.encode())
        except ValueError:  # a value that is no JSON is none of ours
            continue
    return values


def _records(path: Path, remarks: list[str]) -> Iterator[Any]:
    """The records of a file, parsed by wandb; remarks on an end that is missing are added."""
    from google.protobuf.message import DecodeError  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    for content in _frames(path, remarks):
        record = Record()
        try:
            record.ParseFromString(content)
        except DecodeError as error:
            raise ValueError(f"{path} is damaged: a record cannot be parsed.") from error
        yield record


def _frames(path: Path, remarks: list[str]) -> Iterator[bytes]:
    """Contents of the records, each joined from its fragments."""
    with opened(path) as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or _HEADER.unpack(header)[:2] != (_HEAD, _MAGIC):
            raise ValueError(f"{path} is not an offline run of wandb: it has another header.")
        if (version := _HEADER.unpack(header)[2]) != _VERSION:
            raise ValueError(f"{path} has version {version} of wandb's format; known: {_VERSION}.")
        fragments: list[bytes] = []
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _FRAGMENT.size:
                file.read(left)
                continue
            head = file.read(_FRAGMENT.size)
            if not head:
                return
            _, length, kind = _FRAGMENT.unpack(head) if len(head) == _FRAGMENT.size else (0, 1, 0)
            content = file.read(length)
            if len(content) < length or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
                remarks.append("the file ends within a record, as left by a kill")
                return
            fragments = [] if kind in (_FULL, _FIRST) else fragments
            fragments.append(content)
            if len(fragments) * _BLOCK > LONGEST:
                raise ValueError(f"{path} has a record of more than {LONGEST >> 20} MiB.")
            if kind in (_FULL, _LAST):
                yield b"".join(fragments)


SOURCE = Source(
    "run-*.wandb (an offline run of wandb)",
    lambda path, head: head.startswith(_HEAD),
    lambda folder: [path for path in Inside(folder).files("*.wandb") if path.is_file()],
    _read,
)
