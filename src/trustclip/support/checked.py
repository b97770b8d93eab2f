"""Frozen dataclasses that check their values on construction, with one-line errors."""

import functools
import re
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from trustclip.support.names import nearest

_T = TypeVar("_T")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):  # pydantic would take true for 1
        raise ValueError("must be a number")
    return value


#: Refuses a bool.
NUMBER = BeforeValidator(_no_bool)

#: Numbers, all of them finite.
Number = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False), NUMBER]
UpToOne = Annotated[float, Field(gt=0, le=1), NUMBER]
Share = Annotated[float, Field(ge=0, le=1), NUMBER]
#: Whole numbers of things, up to a billion: above it, a mistake.
Integer = Annotated[int, Field(ge=-(10**9), le=10**9), NUMBER]
Count = Annotated[int, Field(ge=1, le=10**9), NUMBER]
Whole = Annotated[int, Field(ge=0, le=10**9), NUMBER]
#: What NumPy takes as a seed.
Seed = Annotated[int, Field(ge=0, lt=2**32), NUMBER]


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
    result: Any = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))(cls)
    init = result.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValidationError as error:
            raise ValueError(explain(error)) from None

    result.__init__ = __init__
    return result


def explain(error: ValidationError) -> str:
    """Text of a validation error: for each problem the field, the rule and the value."""
    return "; ".join(_complaint(item) for item in error.errors())


def _complaint(item: ErrorDetails) -> str:
    if item["type"] == "missing":
        return f"`{item['loc'][-1]}` is missing: it has no default"
    suffix, field = f", got {item['input']!r}{hint(item)}", ".".join(map(str, item["loc"]))
    if field and item["msg"].endswith("."):  # sentences of our own, which say what was given
        return f"`{field}`: {rule(item['msg'])}"
    if field:
        return f"`{field}` {rule(item['msg'])}{suffix}"
    return rule(item["msg"]) + (suffix if item["type"] != "value_error" else "")


def hint(item: ErrorDetails) -> str:
    """A suggestion of the nearest allowed value, if the error lists them; else empty."""
    if item["type"] != "literal_error":
        return ""
    near = nearest(item["input"], re.findall(r"'([^']*)'", item.get("ctx", {})["expected"]))
    return f". Did you mean {near!r}?" if near else ""


def rule(message: str) -> str:
    """The rule a value must satisfy, from pydantic's message."""
    if "exceeded maximum size" in message:
        return "should be an integer of fewer digits"
    return message.removeprefix("Input ").removeprefix("Value error, ")
