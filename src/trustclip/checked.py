"""Frozen dataclasses whose values are checked when they are made, with errors a person can read."""

import functools
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def checked(cls: type[_T]) -> type[_T]:
    """Class decorator: frozen, keyword-only, every value checked, no unknown name.

    A wrong value raises a ValueError of one line that names the field, the rule and the value.

    Example:
      >>> @checked
      ... class Step:
      ...     size: float = 0.1
      >>> Step(size="long")
      Traceback (most recent call last):
      ...
      ValueError: `size` should be a valid number, unable to parse string as a number, got 'long'
    """
    made: Any = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))(cls)
    init = made.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValidationError as error:
            raise ValueError(explain(error)) from None

    made.__init__ = __init__
    return made


def explain(error: ValidationError) -> str:
    """Every complaint of a validation error: field, rule, what was given."""
    return "; ".join(
        f"`{'.'.join(map(str, item['loc']))}` {rule(item['msg'])}, got {item['input']!r}"
        if item["loc"]
        else rule(item["msg"])
        for item in error.errors()
    )


def rule(message: str) -> str:
    """What a value should be, from pydantic's message about it."""
    return message.removeprefix("Input ").removeprefix("Value error, ")
