"""What JSON files may hold: names, and the type of each value; other content is one error."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypeAliasType, TypedDict

from trustclip.support import reading

Number = int | float | Tensor
#: Numbers by name, at any depth.
Numbers = TypeAliasType(
    "Numbers",
    "dict[str, int | float | Numbers]",  # pyright: ignore[reportInvalidTypeForm]
)


def mapping(name: str, types: Mapping[str, Any], *, total: bool = True, more: bool = False) -> Any:
    """The type of a dictionary with these keys, and with ``more`` any others: of other releases.

    Example:
      >>> conform({"_step": 3}, mapping("Carried", {"_step": int}), "rank-0.json")
      >>> conform({"args": "x"}, mapping("Carried", {"_step": int}, total=False), "rank-0.json")
      Traceback (most recent call last):
      ...
      ValueError: rank-0.json: args: extra inputs are not permitted.
    """
    make: Any = TypedDict  # with names that no class could have written out
    kind = make(name, dict(types), total=total)
    extra = "allow" if more else "forbid"
    kind.__pydantic_config__ = ConfigDict(strict=True, extra=extra, arbitrary_types_allowed=True)
    return kind


def conform(value: Any, kind: Any, where: str) -> None:
    """Compare a value with a type; the message of a ValueError names the key."""
    try:
        _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part)[:80] for part in first["loc"]) or "its content"
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise ValueError(f"{where}: {key}: {reason}.") from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def alike(value: Any, own: Any, where: str) -> None:
    """Compare a state with that of the object that will load it: the same kinds of values.

    Keys of only one of them, and values that are None in either, are not compared.

    Example:
      >>> alike({"last_epoch": 3}, {"last_epoch": 0}, "optimizer.json: scheduler")
      >>> alike({"last_epoch": []}, {"last_epoch": 0}, "optimizer.json: scheduler")
      Traceback (most recent call last):
      ...
      ValueError: optimizer.json: scheduler.last_epoch is a list, not a number.
    """
    if value is None or own is None:
        return
    kinds = _kind(value), _kind(own)
    if kinds[0] != kinds[1]:
        raise ValueError(f"{where} is a {kinds[0]}, not a {kinds[1]}.")
    if isinstance(own, Mapping):
        for key in own.keys() & value.keys():
            alike(value[key], own[key], f"{where}.{key}")
    elif isinstance(own, list | tuple):
        for number, pair in enumerate(zip(value, own, strict=False)):
            alike(*pair, f"{where}.{number}")


def _kind(value: Any) -> str:
    if isinstance(value, int | float | Tensor):
        return "number"
    return "dictionary" if isinstance(value, Mapping) else type(value).__name__


def read_json(file: Path) -> Any:
    """The value in a JSON file.

    Raises:
      ValueError: it is none, or none that `trustclip.support.reading` reads.
    """
    try:
        return reading.parse_json(reading.content(file), exact=True)
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}.") from error
