"""Conversion of command-line arguments into the classes that declare them.

`changes_of` turns a command line into changes by dotted path, which `trustclip.support.settings`
applies to what a preset or a file holds; `parse` fills the class of a command's options.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from trustclip.cli.options import help_of, options_of
from trustclip.support.marks import fields_of, type_at
from trustclip.support.names import unknown
from trustclip.support.settings import Source, build, path_of
from trustclip.support.terminal import say
from trustclip.support.yaml_files import parse_scalar

if TYPE_CHECKING:
    from trustclip.constraints.base import Method

T = TypeVar("T")
Command = Callable[[Sequence[str]], int]

#: Words that may follow a switch.
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")


def require(*packages: str) -> None:
    """Refuse a command at once if a package that it imports only at its end is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def reads(cls: type[T]) -> Callable[[Callable[[T], int]], Command]:
    """Decorator of a command that needs nothing but its options."""

    def reading(function: Callable[[T], int]) -> Command:
        @functools.wraps(function)
        def command(argv: Sequence[str]) -> int:
            return function(parse(cls, argv, function.__name__))

        return command

    return reading


def print_help(
    argv: Sequence[str], cls: type, command: str, *, usage: str = "", examples: str = ""
) -> None:
    """Print the help text of a command and exit, where its arguments ask for it.

    ``usage`` is the head of the text where the class does not provide it, ``examples`` its end.
    """
    if {"-h", "--help"} & set(argv):
        say("\n\n".join(filter(None, [help_of(cls, command, usage), examples])))
        raise SystemExit(0)


def parse(
    cls: type[T],
    argv: Sequence[str],
    command: str,
    presets: Mapping[str, T] | None = None,
    *,
    fill: Callable[[dict[str, Any]], T] | None = None,
    examples: str = "",
) -> T:
    """Fill the class of a command's options; ``--help`` prints them and exits.

    Presets are defaults by name, for ``--preset NAME``. ``fill`` makes the settings of the changes,
    in place of `trustclip.support.settings.build`. The examples end the help text.
    """
    print_help(argv, cls, command, examples=examples)
    options = options_of(cls)
    rest, preset = split_option([*argv], "--preset")
    if preset is not None and preset not in (presets or {}):
        raise ValueError(unknown(f"preset of {command}", preset, presets or {}))
    short = {_name(flag): one.path for one in options for flag in one.flags[:-1]}
    many = {one.path for one in options if one.many and fill is None}
    arguments, changes = changes_of(rest, cls, short, many)
    for one in options:
        if one.positional and arguments and one.path not in changes:
            changes[one.path] = arguments if one.many else arguments[0]
            arguments = [] if one.many else arguments[1:]
    if arguments:
        raise ValueError(f"unexpected argument {arguments[0]!r}; see trustclip {command} --help.")
    if fill is not None:
        return fill(changes)
    for name in changes:
        if path_of(name, short).partition(".")[0] not in fields_of(cls):
            flags = [flag for one in options if not one.positional for flag in one.flags]
            raise ValueError(unknown(f"option of {command}", f"--{name.replace('_', '-')}", flags))
    content = {} if preset is None else {**vars((presets or {})[preset])}
    return build(cls, content, Source(changes=changes, aliases=short))


def changes_of(
    argv: Sequence[str],
    cls: type,
    aliases: Mapping[str, str] | None = None,
    many: Collection[str] = (),
) -> tuple[list[str], dict[str, Any]]:
    """Positional arguments, and options as changes to settings: ``{dotted path: value}``.

    A value is parsed by the type of its field: text stays text, everything else is YAML. What the
    class does not have is a change as well, which `build` refuses. Aliases are short forms of
    dotted paths; options whose path is one of ``many`` take several values.

    Example:
      >>> from trustclip.train.settings.stages import Recipe
      >>> changes_of(["a.yaml", "--rl.learning-rate", "1e-5", "--seed=1", "--rl.use-vllm"], Recipe)
      (['a.yaml'], {'rl.learning_rate': 1e-05, 'seed': 1, 'rl.use_vllm': True})
    """
    aliases = aliases or {}

    def path(option: str) -> str:
        return path_of(_name(option), aliases)

    def capacity(option: str) -> int:
        if path(option) in many:
            return 10**6
        switch = type_at(cls, path(option).split(".")) is bool
        return 0 if switch or _positive(cls, _name(option), aliases) else 1

    positional: list[str] = []
    changes: dict[str, Any] = {}
    for option, words in _words(argv, capacity):
        if not option:
            positional += words
            continue
        name, hint = _name(option), type_at(cls, path(option).split("."))
        if not words and hint is None and (positive := _positive(cls, name, aliases)):
            changes[positive] = False
        elif words and path(option) in many:
            changes[name] = [_value(path(option), get_args(hint)[0], word) for word in words]
        elif words:
            changes[name] = _value(path(option), hint, words[0])
        elif hint is bool or (hint is None and "method" not in path(option).split(".")):
            changes[name] = True  # a switch, a field of TRL, or an unknown key (`build` reports it)
        else:
            raise ValueError(f"{option} needs a value.")
    return positional, changes


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _words(argv: Sequence[str], capacity: Callable[[str], int]) -> Iterator[tuple[str, list[str]]]:
    """Each option with its words, in order; ``("", [argument])`` for a positional argument.

    An option takes at most its capacity of words; a switch, with 0, an explicit true or false.
    """
    rest = list(argv)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("-") or option == "-" or option[1:2].isdigit():
            yield "", [f"{option}{equals}{value}"]
        elif equals:
            yield option, [value]
        else:
            words: list[str] = []
            limit = capacity(option) or int(bool(rest) and rest[0].lower() in _TRUTH)
            while rest and len(words) < limit and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            yield option, words


def _positive(cls: type, name: str, aliases: Mapping[str, str]) -> str | None:
    """The switch that a negated option turns off: ``rl.use_vllm`` for ``rl.no_use_vllm``."""
    head, dot, last = name.rpartition(".")
    positive = head + dot + last.removeprefix("no_")
    is_switch = type_at(cls, path_of(positive, aliases).split(".")) is bool
    return positive if last.startswith("no_") and is_switch else None


def _value(path: str, hint: Any, text: str) -> Any:
    """Parse the text of an option for a field of type ``hint``."""
    if path.rpartition(".")[2] == "method":  # its name, or {name: ..., ...}
        return parse_scalar(text) if text.lstrip().startswith("{") else text
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and text in ("None", "none", "null"):
        return None
    if {str, Path} & set(kinds) or any(get_origin(kind) is Literal for kind in kinds):
        return text
    value = parse_scalar(text)
    # Pydantic would take true for 1.
    return text if isinstance(value, bool) and {int, float} & set(kinds) else value


def method_from(name: str, argv: Sequence[str], command: str) -> "tuple[Method, list[str]]":
    """Build a method from its hyper-parameters as arguments, e.g. ``["--delta", "0.05"]``.

    A controller may replace a number, written as YAML: ``["--delta", "{controller:
    target_gate, share: 0.02}"]``.

    Returns:
      The method, and the positional arguments.
    """
    from trustclip.constraints.base import method_class
    from trustclip.constraints.registry import method

    cls = method_class(name)
    print_help(argv, cls, command)
    positional, changes = changes_of(argv, cls)
    return method(name, **changes), positional


def split_option(argv: list[str], flag: str) -> tuple[list[str], str | None]:
    """``argv`` without ``flag VALUE`` (or ``flag=VALUE``), and the value."""
    for i, argument in enumerate(argv):
        if argument.startswith(flag + "="):
            return argv[:i] + argv[i + 1 :], argument.partition("=")[2]
        if argument == flag:
            if i + 1 == len(argv):
                raise ValueError(f"{flag} needs a value.")
            return argv[:i] + argv[i + 2 :], argv[i + 1]
    return argv, None
