"""Marks beside the type of a setting: what else is true of it, stated once.

``top_p: Annotated[UpToOne, Trl()] = 1.0`` goes to TRL under its own name; the engine, the run
directory, the recorder and the command line ask `marked` instead of keeping lists of names.
"""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Trl:
    """The field of the same name of TRL's configuration, as we have it, gets its value."""


@dataclass(frozen=True)
class Neutral:
    """No result depends on it, so a run that has begun may continue with another value."""

    why: str


@dataclass(frozen=True)
class Extends:
    """The number of updates: a run that has begun may get more."""


@dataclass(frozen=True)
class Positional:
    """An argument of a command without a name."""


@dataclass(frozen=True)
class Also:
    """Other names of an option, such as ``-o``."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Metavar:
    """The placeholder of its value in a help text, in place of its type."""

    text: str


@dataclass(frozen=True)
class Dotted:
    """A mapping whose values the command line sets by path; it has no option itself."""


#: A setting that goes to TRL unchanged.
ToTrl = Annotated[T, Trl()]
#: An argument of a command without a name.
Argument = Annotated[T, Positional()]


def marks(hint: Any) -> tuple[Any, ...]:
    """The marks beside a type.

    Example:
      >>> marks(Annotated[int, Neutral("a title")])
      (Neutral(why='a title'),)
    """
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


@cache
def marked(cls: type, kind: type[T]) -> Mapping[str, T]:
    """The settings of a class that bear a mark, in their order.

    Example:
      >>> @dataclass
      ... class Settings:
      ...     top_p: Annotated[float, Trl()] = 1.0
      >>> marked(Settings, Trl)
      {'top_p': Trl()}
    """
    hints = get_type_hints(cls, include_extras=True)
    matches = {
        name: [m for m in marks(hints[name]) if isinstance(m, kind)] for name in fields_of(cls)
    }
    return {name: hits[0] for name, hits in matches.items() if hits}


def fields_of(cls: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass, in their order."""
    return tuple(name for name, field in cls.__dataclass_fields__.items() if field.init)


@cache
def descriptions(cls: type) -> dict[str, str]:
    """Field -> its description: the string after it in its class, or its entry in ``Args:``."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        docs |= dict(_arguments(inspect.cleandoc(base.__doc__ or "")))
        with contextlib.suppress(OSError, TypeError, IndentationError):  # not from a file
            docs |= dict(_strings(textwrap.dedent(inspect.getsource(base))))
    return docs


def _arguments(doc: str) -> Iterator[tuple[str, str]]:
    _, _, section = doc.partition("\nArgs:\n")
    for entry in textwrap.dedent(section.partition("\n\n")[0]).replace("\n ", " ").splitlines():
        name, colon, text = entry.partition(": ")
        if colon:
            yield name, " ".join(text.split())


def _strings(source: str) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for statement, successor in pairwise(definition.body):
        match statement, successor:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())


def class_in(hint: Any) -> Any:
    """The dataclass that a type is, or that a value of it may be; None for other types."""
    kinds = (hint, *get_args(hint))
    return next((kind for kind in kinds if hasattr(kind, "__dataclass_fields__")), None)


def type_at(cls: Any, path: Sequence[str]) -> Any:
    """Type of the field at a path of nested settings classes; None where there is none.

    Example:
      >>> from trustclip.train.settings.stages import Recipe
      >>> type_at(Recipe, ["rl", "lora", "use_dora"]), type_at(Recipe, ["rl", "trl", "optim"])
      (<class 'bool'>, None)
    """
    for name in path:
        if get_origin(cls) is dict:  # settings by names of the user's own, or plain values
            cls = class_in(get_args(cls)[1])
            continue
        inner = class_in(cls)
        cls = get_type_hints(inner).get(name) if inner else None
    return cls


@cache
def sections(cls: type) -> Mapping[str, type]:
    """The settings of a class that are settings themselves, such as the stages of a recipe."""
    kinds = {name: class_in(hint) for name, hint in get_type_hints(cls).items()}
    return {name: kinds[name] for name in fields_of(cls) if kinds[name] is not None}
