"""How the files that others wrote are read: regular files alone, and within stated bounds.

Every reader of a run directory, a log or a file of tokens comes through here, so that a file of a
kilobyte cannot take gigabytes, and a number, a depth or a length that nobody has measured ends in
one sentence. `trustclip.support.inside` says which path such a file may have.
"""

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from trustclip.support.inside import regular

#: Bytes of a line, and of a JSON file, which is read whole.
LONGEST = 64 << 20
#: Bytes of a YAML file; a megabyte takes ten seconds to read.
LONGEST_YAML = 1 << 20
#: Values in a JSON text or YAML file, in YAML with its aliases written out.
MOST_VALUES = 4_000_000
#: Mappings and lists within each other.
DEEPEST = 64
#: Absolute value above which a number is no measurement: the square of a smaller one can be summed.
BEYOND = 1e100

_OTHERS = (str, dict, list, datetime.date, type(None))


def opened(path: Path) -> BinaryIO:
    """A regular file, opened for reading. What the user has named may be a link.

    Raises:
      ValueError: it is a folder, a pipe or a device.
      OSError: it cannot be opened.
    """
    return open(path, "rb", opener=regular)


def content(path: Path, most: int = LONGEST) -> bytes:
    """The bytes of a file.

    Raises:
      ValueError: there are more than ``most``, or it is no regular file.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path} has {size:,} bytes; such a file may have {most:,}.")
        return file.read(most)


def lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Lines of a file, with their newlines, from a byte on.

    Raises:
      ValueError: one is longer than `LONGEST`, or it is no regular file.
    """
    with opened(path) as file:
        file.seek(start)
        while line := file.readline(LONGEST + 1):
            if len(line) > LONGEST:
                at = file.tell() - len(line)
                raise ValueError(
                    f"{path} has a line of more than {LONGEST >> 20} MiB (from byte {at:,} on); "
                    "none may be longer."
                )
            yield line


def _float(text: str) -> float | None:
    number = float(text)
    return number if abs(number) <= BEYOND else None


def _int(text: str) -> int | None:
    return int(text) if len(text) < 19 else None  # it fits into 64 bits


#: JSON whose numbers can be computed with and shown; all others are null.
_DECODER = json.JSONDecoder(parse_float=_float, parse_int=_int, parse_constant=lambda _: None)
_EXACT = json.JSONDecoder()


def parse_json(text: bytes, *, exact: bool = False) -> Any:
    """The value of a JSON text; NaN, infinities and numbers of absurd size become None.

    ``exact`` leaves every number as it is: a random state has integers of 39 digits.

    Raises:
      ValueError: it is not JSON, or holds more or deeper values than `MOST_VALUES` and `DEEPEST`.

    Example:
      >>> parse_json(b'{"loss": 0.5, "reward": 1e308, "step": 10000000000000000000000}')
      {'loss': 0.5, 'reward': None, 'step': None}
    """
    inner = text.count(b"[") + text.count(b"{")
    # Every value but the first of a list or mapping follows a comma.
    if len(text) > MOST_VALUES and inner + text.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        value = (_EXACT if exact else _DECODER).decode(text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from error
    if inner > DEEPEST:
        for _ in _levels(value):
            pass
    return value


def parse_yaml(text: str) -> Any:
    r"""The value of a YAML text.

    Raises:
      ValueError: it is beyond the bounds of `check_bounds`.
      yaml.YAMLError: no YAML.

    Example:
      >>> parse_yaml("a: &x [1, 2]\nb: *x")
      {'a': [1, 2], 'b': [1, 2]}
    """
    if len(text) > LONGEST_YAML:
        raise ValueError(f"{len(text):,} characters; such a file may have {LONGEST_YAML:,}")
    try:
        value = yaml.safe_load(text)
    except RecursionError as error:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from error
    check_bounds(value)
    return value


def check_bounds(value: Any) -> None:
    """Refuse what no record holds, by a ValueError: too much, too deep, or of another kind.

    A value that stands in several places, by aliases of YAML, counts in each of them.
    """
    for level in _levels(value):
        for item in level:
            if isinstance(item, int | float):
                if not abs(item) <= BEYOND:
                    raise ValueError(f"a number beyond {BEYOND:g}, or none: {str(item)[:40]}")
            elif not isinstance(item, _OTHERS):
                raise ValueError(f"a value of the type {type(item).__name__}")
            elif isinstance(item, dict) and (odd := [k for k in item if not isinstance(k, str)]):
                raise ValueError(f"a key that is no text: {str(odd[0])[:40]}")


def _levels(value: Any) -> Iterator[list[Any]]:
    """The values at each depth, from the outermost; more than the bounds allow is a ValueError."""
    level, count = [value], 1
    for _ in range(DEEPEST + 1):
        yield level
        inner = [item for item in level if isinstance(item, dict | list)]
        if not inner:
            return
        count += sum(map(len, inner))
        if count > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values, with its aliases written out")
        level = [each for i in inner for each in (i.values() if isinstance(i, dict) else i)]
    raise ValueError(f"nested more than {DEEPEST} levels deep, or within itself")
