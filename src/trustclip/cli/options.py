"""The options of a command as its class declares them: names, types, defaults; its help text."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trustclip.cli.registry import command_of
from trustclip.support.jsonl import plain
from trustclip.support.marks import (
    Also,
    Dotted,
    Metavar,
    Positional,
    class_in,
    descriptions,
    fields_of,
    marks,
)

#: Names of types in a help text.
_WORDS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}


@dataclass(frozen=True, eq=False)
class Option:
    """One option, or one positional argument."""

    path: str  # of the field, with dots where it is a field of a field
    hint: Any  # its type, without its marks
    marks: tuple[Any, ...]  # see `trustclip.support.marks`
    text: str  # its description
    default: Any  # `dataclasses.MISSING` if it is required

    @property
    def flags(self) -> list[str]:
        """Its names on the command line; the last one is its field's."""
        also = [name for mark in self.marks if isinstance(mark, Also) for name in mark.names]
        names = ".NAME" if any(isinstance(mark, Dotted) for mark in self.marks) else ""
        return [*also, f"--{self.path.replace('_', '-')}{names}"]

    @property
    def off(self) -> str:
        """The name that turns a switch off; empty for anything else."""
        section, dot, name = self.path.replace("_", "-").rpartition(".")
        return f"--{section}{dot}no-{name}" if self.hint is bool else ""

    @property
    def positional(self) -> bool:
        return any(isinstance(mark, Positional) for mark in self.marks)

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def many(self) -> bool:
        return get_origin(self.hint) is tuple

    @property
    def metavar(self) -> str:
        """The placeholder of its value in a help text."""
        if texts := [mark.text for mark in self.marks if isinstance(mark, Metavar)]:
            return texts[0]
        kinds = kinds_of(get_args(self.hint)[0] if self.many else self.hint)
        none = ["{None}"] if NoneType in kinds and not self.positional else []
        return "|".join([*none, *(_word(kind) for kind in kinds if kind is not NoneType)])


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Types that a value of a type may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    return _WORDS.get(kind) or ("METHOD" if hasattr(kind, "surrogate") else "YAML")


@cache
def options_of(cls: Any, prefix: str = "") -> tuple[Option, ...]:
    """The fields of a dataclass as options, those of nested classes included.

    Example:
      >>> from trustclip.train.settings.stages import RLStage
      >>> [one.path for one in options_of(RLStage) if one.path.startswith("top_")]
      ['top_p']
    """
    hints, bare = get_type_hints(cls, include_extras=True), get_type_hints(cls)
    docs = descriptions(cls)
    options: list[Option] = []
    for name in fields_of(cls):
        field, extras = cls.__dataclass_fields__[name], marks(hints[name])
        inner = class_in(bare[name])
        if inner and not hasattr(inner, "surrogate"):  # a method is one value
            options += options_of(inner, f"{prefix}{name}.")
            continue
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        options.append(Option(f"{prefix}{name}", bare[name], extras, docs.get(name, ""), default))
    return tuple(options)


def describe(cls: type) -> str:
    """What the options of a class are for: its docstring, without the sections."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    own = not doc.startswith(f"{cls.__name__}(")  # else the signature, which a dataclass puts there
    text = re.split(r"\n(?:\$\$|Args:|Example:|References:)", doc)[0].strip() if own else ""
    width = shutil.get_terminal_size().columns - 2
    filled = (p if "\n  " in p else textwrap.fill(p, width) for p in text.split("\n\n"))
    return "\n\n".join(filled)


def help_of(cls: type | None, command: str, flags: Mapping[str, str] = {}) -> str:
    """The help text of a command, for the class of its options.

    ``flags`` are what it takes beside them: how each is written, and what it does.
    """
    one = command_of(command)
    does = describe(cls) if cls else ""
    if one and not does:
        does = f"{one.does[0].upper()}{one.does[1:]}."
    options = options_of(cls) if cls else ()
    arguments = [flag for flag in flags if not flag.startswith("-")]
    usage = ["usage: trustclip", command, *(arguments or _needed(options)), "[options]"]
    groups: dict[str, list[str]] = {"arguments": [], "options": []}
    for flag, text in flags.items():
        groups["arguments" if flag in arguments else "options"].append(_row(flag, text))
    for one in sorted(options, key=lambda one: (not one.required, _depth(cls, one))):
        section = one.path.rpartition(".")[0]
        title = f"options of {section}" if section else "options"
        groups.setdefault("arguments" if one.positional else title, []).append(_entry(one))
    groups["options"].append(_row("-h, --help", "print this text"))
    texts = (f"{title}:\n" + "\n".join(rows) for title, rows in groups.items() if rows)
    return "\n\n".join([" ".join(usage), *filter(None, [does]), *texts])


def _entry(one: Option) -> str:
    """An option and its description in a help text."""
    value = "" if one.hint is bool else f"[{one.metavar} ...]" if one.many else one.metavar
    names = [] if one.positional else [*one.flags, *filter(None, [one.off])]
    text = one.text
    if one.required and not one.positional:
        text += " (required)"
    elif one.default is not MISSING and one.default not in (None, (), {}, ""):
        text += f" (default: {_default_text(one.default)})"
    return _row(" ".join(filter(None, [", ".join(names), value])), text.strip())


#: Column of a help text in which descriptions begin.
_INDENT = 24


def _row(names: str, text: str) -> str:
    width = max(shutil.get_terminal_size().columns - 2, _INDENT + 20)
    indent = " " * _INDENT
    body = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
    fits = len(names) + 4 <= _INDENT
    return f"  {names}".ljust(_INDENT) + body[_INDENT:] if fits else f"  {names}\n{body}".rstrip()


def _depth(cls: Any, one: Option) -> int:
    """How far up an option is inherited from: what a class itself adds is shown first."""
    name = one.path.partition(".")[0]
    bases = enumerate(cls.__mro__)
    return max(depth for depth, base in bases if name in inspect.get_annotations(base))


def _needed(options: Sequence[Option]) -> Iterator[str]:
    """The words of a usage: arguments, and options that must be given."""
    for one in options:
        if one.positional:
            word = f"{one.metavar} ..." if one.many else one.metavar
            yield word if one.required else f"[{word}]"
        elif one.required:
            yield f"{one.flags[-1]} {one.metavar}"


def _default_text(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, tuple):
        return " ".join(map(_default_text, value))
    value = plain(value)
    if isinstance(value, dict):
        inside = ", ".join(f"{name}: {_default_text(inner)}" for name, inner in value.items())
        return f"{{{inside}}}"
    return str(value)
