"""Conversion of command-line arguments into the classes that declare them.

`changes_of` turns a command line into changes by dotted path, which `trustclip.support.settings`
applies to what a preset or a file holds; `parse` fills the class of a command's options.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from trustclip.cli.options import help_of, kinds_of, options_of
from trustclip.support.marks import fields_of, type_at
from trustclip.support.names import unknown
from trustclip.support.settings import Source, build, path_of
from trustclip.support.terminal import say
from trustclip.support.yaml_files import parse_scalar

T = TypeVar("T")
#: Words that may follow a switch.
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")


def require(*packages: str) -> None:
    """Refuse a command at once if a package that it imports only at its end is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def without(argv: Sequence[str], flag: str) -> tuple[list[str], bool]:
    """The arguments without a flag, and whether it is among them."""
    return [argument for argument in argv if argument != flag], flag in argv


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
    *,
    presets: Callable[[str], Mapping[str, Any]] | None = None,
    make: Callable[[type[T], dict[str, Any], Source], T] = build,
    examples: str = "",
) -> T:
    """Fill the class of a command's options; ``--help`` prints them and exits.

    ``presets`` has the values of ``--preset NAME`` by its name. ``make`` fills the class, in place
    of `trustclip.support.settings.build`, and refuses what it lacks. The examples end the help.
    """
    print_help(argv, cls, command, examples=examples)
    content: dict[str, Any] = {}
    if presets is not None:
        argv, preset = split_option([*argv], "--preset")
        content = {} if preset is None else {**presets(preset)}
    options = options_of(cls)
    short = {_name(flag): one.path for one in options for flag in one.flags[:-1]}
    arguments, changes = changes_of(argv, cls, short)
    for one in options:
        if one.positional and arguments and one.path not in changes:
            changes[one.path] = arguments if one.many else arguments[0]
            arguments = [] if one.many else arguments[1:]
        if one.positional and one.required and one.path not in (*changes, *content):
            raise ValueError(f"{one.metavar} is missing; see trustclip {command} --help.")
    if arguments:
        raise ValueError(f"unexpected argument {arguments[0]!r}; see trustclip {command} --help.")
    for name in changes if make is build else ():
        if path_of(name, short).partition(".")[0] not in fields_of(cls):
            flags = ["--help", *(flag for o in options if not o.positional for flag in o.flags)]
            raise ValueError(unknown("option", f"--{name.replace('_', '-')}", flags, of=command))
    return make(cls, content, Source(changes=changes, aliases=short))


def changes_of(
    argv: Sequence[str],
    cls: type,
    aliases: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Positional arguments, and options as changes to settings: ``{dotted path: value}``.

    A value is parsed by the type of its field: text stays text, everything else is YAML. What the
    class does not have is a change as well, which `build` refuses. Aliases are short forms of
    dotted paths. A tuple takes several words, or within a section YAML as well.

    Example:
      >>> from trustclip.train.settings.stages import Recipe
      >>> changes_of(["a.yaml", "--rl.learning-rate", "1e-5", "--seed=1", "--rl.use-vllm"], Recipe)
      (['a.yaml'], {'rl.learning_rate': 1e-05, 'seed': 1, 'rl.use_vllm': True})
    """
    aliases = aliases or {}
    off = {_name(one.off): one.path for one in options_of(cls) if one.off}
    positional: list[str] = []
    changes: dict[str, Any] = {}
    rest = [*argv]
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("-") or option == "-" or option[1:2].isdigit():
            positional.append(f"{option}{equals}{value}")
            continue
        name = _name(option)
        path = path_of(name, aliases)
        hint = type_at(cls, path.split("."))
        many = get_origin(hint) is tuple and "." not in path
        if not equals and hint is None and name in off:
            changes[off[name]] = False
            continue
        words = [value] if equals else _words(rest, hint, many)
        if not words and hint is None and "method" not in path.split("."):
            words = ["true"]  # a switch of TRL, or an unknown key (`build` reports it)
        if not words:
            raise ValueError(f"{option} needs a value.")
        values = [_value(path, get_args(hint)[0] if many else hint, word) for word in words]
        changes[name] = values if many else values[0]
    return positional, changes


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _words(rest: list[str], hint: Any, many: bool) -> list[str]:
    """Take the words of an option from the front of the rest: one, many, or those of a switch."""
    if hint is bool:
        return [rest.pop(0)] if rest and rest[0].lower() in _TRUTH else ["true"]
    words = [*takewhile(lambda word: not word.startswith("--"), rest)][: None if many else 1]
    del rest[: len(words)]
    return words


def _value(path: str, hint: Any, text: str) -> Any:
    """Parse the text of an option for a field of type ``hint``."""
    if path.rpartition(".")[2] == "method":  # its name, or {name: ..., ...}
        return parse_scalar(text) if text.lstrip().startswith("{") else text
    kinds = kinds_of(hint)
    if NoneType in kinds and text in ("None", "none", "null"):
        return None
    if {str, Path} & set(kinds) or any(get_origin(kind) is Literal for kind in kinds):
        return text
    value = parse_scalar(text)
    # Pydantic would take true for 1.
    return text if isinstance(value, bool) and {int, float} & set(kinds) else value


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
