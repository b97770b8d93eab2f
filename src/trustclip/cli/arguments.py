"""Conversion of command-line arguments into the classes that declare them.

`changes_of` turns a command line into changes by dotted path, which `trustclip.support.settings`
applies to what a preset or a file holds; `parse` fills the class of a command's options.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from trustclip.cli.options import help_of, kinds_of, options_of
from trustclip.support.marks import fields_of, type_at
from trustclip.support.names import unknown
from trustclip.support.settings import Source, build
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


def taken(argv: Sequence[str], flag: str) -> tuple[list[str], str | None]:
    """The arguments without a flag, such as "--dry-run" or "--plot FILE", and what is given for it.

    For a switch this is its name. It is None if the flag is absent.
    """
    name, _, value = flag.partition(" ")
    for i, word in enumerate(argv):
        if value and word.startswith(f"{name}="):
            return [*argv[:i], *argv[i + 1 :]], word.removeprefix(f"{name}=")
        if word == name:
            end = i + 2 if value else i + 1
            if end > len(argv):
                raise ValueError(f"{name} needs a value.")
            return [*argv[:i], *argv[end:]], argv[end - 1]
    return [*argv], None


def file_of(argv: Sequence[str], cls: type, command: str, what: str) -> tuple[Path, dict[str, Any]]:
    """The file or folder that a command is given, and the changes to the settings in it."""
    files, changes = changes_of(argv, cls)
    if len(files) != 1:
        raise ValueError(f"give one {what}, got {len(files)}; see trustclip {command} --help.")
    return Path(files[0]), changes


def print_help(
    argv: Sequence[str], cls: type | None, command: str, flags: Mapping[str, str] = {}
) -> None:
    """Print the help text of a command and exit, where its arguments ask for it."""
    if {"-h", "--help"} & set(argv):
        say(help_of(cls, command, flags))
        raise SystemExit(0)


def given(
    cls: type, argv: Sequence[str], command: str, flags: Mapping[str, str] = {}
) -> dict[str, Any]:
    """The changes to the settings of a class that a command line asks for.

    ``--help`` prints its options, and the flags that have been `taken`, and exits.
    """
    print_help(argv, cls, command, flags)
    arguments, changes = changes_of(argv, cls)
    for one in options_of(cls):
        if one.positional and arguments and one.path not in changes:
            changes[one.path] = arguments if one.many else arguments[0]
            arguments = [] if one.many else arguments[1:]
        if one.positional and one.required and one.path not in changes:
            raise ValueError(f"{one.metavar} is missing; see trustclip {command} --help.")
    if arguments:
        raise ValueError(f"unexpected argument {arguments[0]!r}; see trustclip {command} --help.")
    return changes


def parse(cls: type[T], argv: Sequence[str], command: str) -> T:
    """Fill the class of a command's options, and refuse what it does not have."""
    changes = given(cls, argv, command)
    for name in changes:
        if name.partition(".")[0] not in fields_of(cls):
            names = (flag for one in options_of(cls) if not one.positional for flag in one.flags)
            option = f"--{name.replace('_', '-')}"
            raise ValueError(unknown("option", option, ["--help", *names], of=command))
    return build(cls, {}, Source(changes=changes))


def changes_of(argv: Sequence[str], cls: type) -> tuple[list[str], dict[str, Any]]:
    """Positional arguments, and options as changes to settings: ``{dotted path: value}``.

    A value is parsed by the type of its field: text stays text, everything else is YAML. What the
    class does not have is a change as well, which `build` refuses. A tuple takes several words, or
    within a section YAML as well.

    Example:
      >>> from trustclip.train.settings.stages import Recipe
      >>> changes_of(["a.yaml", "--rl.learning-rate", "1e-5", "--seed=1", "--rl.use-vllm"], Recipe)
      (['a.yaml'], {'rl.learning_rate': 1e-05, 'seed': 1, 'rl.use_vllm': True})
    """
    paths = {_name(flag): one.path for one in options_of(cls) for flag in one.flags}
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
        if name in off and not equals:
            changes[off[name]] = False
            continue
        path = paths.get(name, name)
        hint = type_at(cls, path.split("."))
        many = get_origin(hint) is tuple and "." not in path
        words = [value] if equals else _words(rest, hint, many)
        if not words and hint is None and "method" not in path.split("."):
            words = ["true"]  # a switch of TRL, or an unknown key (`build` reports it)
        if not words:
            raise ValueError(f"{option} needs a value.")
        values = [_value(path, get_args(hint)[0] if many else hint, word) for word in words]
        changes[path] = values if many else values[0]
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
