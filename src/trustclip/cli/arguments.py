"""Conversion of command-line arguments into settings.

`settings` fills the settings of an experiment: options are changes by dotted path, made
to a preset or to a recipe file and checked by `trustclip.recipes.files.build`. `parse` is tyro's,
for the options of every other command.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from trustclip.constraints.names import unknown

if TYPE_CHECKING:
    from trustclip.constraints.base import Method

T = TypeVar("T")

_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _method_as_text(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Rule by which tyro reads and shows a field that holds a method: one line of YAML."""
    base = sys.modules.get("trustclip.constraints.base")  # absent: no class has such a field
    if base is None or not (isinstance(info.type, type) and issubclass(info.type, base.Method)):
        return None
    from trustclip.constraints.registry import as_method

    def as_text(method: "Method") -> list[str]:
        import yaml

        text = yaml.safe_dump(
            method.to_dict(), default_flow_style=True, sort_keys=False, width=10**6
        )
        return [text.strip()]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="METHOD",
        instance_from_str=lambda words: as_method(_spec(words[0])),
        is_instance=lambda value: isinstance(value, base.Method),
        str_from_instance=as_text,
    )


def parse(
    cls: type[T], argv: Sequence[str], command: str, presets: Mapping[str, T] | None = None
) -> T:
    """Parse the options of a command with tyro, which exits with status 2 on wrong usage.

    Args:
      cls: class of the options.
      argv: arguments after the command.
      command: name of the command, for its help.
      presets: defaults by name, for ``--preset NAME``.

    Raises:
      ValueError: unknown preset, or a value out of range.
    """
    rest, preset = taken(list(argv), "--preset")
    options: dict[str, Any] = {}
    if preset is not None:
        if preset not in (presets or {}):
            raise ValueError(unknown(f"preset of {command}", preset, presets or {}))
        options["default"] = (presets or {})[preset]
    return tyro.cli(cls, args=rest, prog=f"trustclip {command}", registry=_REGISTRY, **options)


def settings(cls: type[T], argv: Sequence[str], command: str) -> T:
    """Parse the settings of an experiment command; ``--help`` prints the options and exits.

    Args:
      cls: settings class.
      argv: arguments after the command: options by name, ``--preset NAME``, ``--method.NAME
        VALUE`` for a hyper-parameter and ``--trl.NAME VALUE`` for a field of TRL.
      command: name of the command.

    Raises:
      ValueError: all errors, as `trustclip.recipes.files.build` reports them.
    """
    if {"-h", "--help"} & set(argv):
        parse(cls, ["--help"], command)
    from trustclip.recipes.files import Source, build, preset

    rest, name = taken(list(argv), "--preset")
    content = {} if name is None else preset(command, name)
    positional, changes = changes_of(rest, cls)
    if positional:
        raise ValueError(f"unexpected argument {positional[0]!r}; see trustclip {command} --help.")
    return build(cls, content, Source(changes=changes))


def changes_of(
    argv: Sequence[str], cls: type, aliases: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Positional arguments, and options as changes to settings: ``{dotted path: value}``.

    A value is parsed by the type of its field: text stays text, everything else is YAML.

    Args:
      argv: arguments.
      cls: settings class that the options belong to.
      aliases: short forms of dotted paths.

    Raises:
      ValueError: an option without its value.

    Example:
      >>> from trustclip.recipes.settings import Recipe
      >>> changes_of(["a.yaml", "--rl.learning-rate", "1e-5", "--seed=1", "--rl.use-vllm"], Recipe)
      (['a.yaml'], {'rl.learning_rate': 1e-05, 'seed': 1, 'rl.use_vllm': True})
    """
    from trustclip.recipes.files import path_of

    positional: list[str] = []
    changes: dict[str, Any] = {}
    for option, text in _pairs(argv):
        if not option:
            positional.append(text or "")
            continue
        name = option.removeprefix("--").replace("-", "_")
        path = path_of(name, aliases or {})
        hint = _type_of(cls, path.split("."))
        if text is None and hint is None and (positive := _positive(cls, name, aliases or {})):
            changes[positive] = False
        elif text is not None:
            changes[name] = _value(path, hint, text)
        elif hint is bool or (hint is None and "method" not in path.split(".")):
            changes[name] = True  # a switch, a field of TRL, or an unknown key (`build` reports it)
        else:
            raise ValueError(f"{option} needs a value.")
    return positional, changes


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(option, value or None) for every option; ("", argument) for a positional argument."""
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            yield "", argument
        elif "=" in argument:
            option, _, value = argument.partition("=")
            yield option, value
        else:
            yield argument, rest.pop(0) if rest and not rest[0].startswith("--") else None


def _positive(cls: type, name: str, aliases: Mapping[str, str]) -> str | None:
    """The switch that a negated option turns off: ``rl.use_vllm`` for ``rl.no_use_vllm``."""
    from trustclip.recipes.files import path_of

    head, dot, last = name.rpartition(".")
    positive = head + dot + last.removeprefix("no_")
    is_switch = _type_of(cls, path_of(positive, aliases).split(".")) is bool
    return positive if last.startswith("no_") and is_switch else None


def _type_of(cls: Any, path: Sequence[str]) -> Any:
    """Type of the field at a path of nested settings classes; None where there is none."""
    for name in path:
        inner = [c for c in (get_args(cls) or (cls,)) if hasattr(c, "__dataclass_fields__")]
        hints = get_type_hints(inner[0]) if inner else {}
        if name not in hints:
            return None
        cls = hints[name]
    return cls


def _value(path: str, hint: Any, text: str) -> Any:
    """Parse the text of an option for a field of type ``hint``."""
    if path.rpartition(".")[2] == "method":
        return _spec(text)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and text in ("None", "none", "null"):
        return None
    if {str, Path} & set(kinds) or any(get_origin(kind) is Literal for kind in kinds):
        return text
    from trustclip.recipes.files import parse_scalar

    return parse_scalar(text)


def _spec(text: str) -> Any:
    """A method's name, or the mapping written as ``{name: ..., ...}``."""
    from trustclip.recipes.files import parse_scalar

    return parse_scalar(text) if text.lstrip().startswith("{") else text


def method_from(name: str, argv: Sequence[str], command: str) -> "Method":
    """Build a method from its hyper-parameters as arguments, e.g. ``["--delta", "0.05"]``.

    A controller may replace a number, written as YAML: ``["--delta", "{controller:
    target_gate, share: 0.02}"]``.

    Args:
      name: of the method.
      argv: arguments.
      command: command that they belong to.

    Raises:
      ValueError: unknown hyper-parameter, a value out of range, or not a controller.
    """
    from trustclip.constraints.base import method_class
    from trustclip.constraints.registry import method

    cls = method_class(name)
    if {"-h", "--help"} & set(argv):
        tyro.cli(cls, args=["--help"], prog=f"trustclip {command}", registry=_REGISTRY)
    positional, changes = changes_of(argv, cls)
    if positional:
        raise ValueError(f"unexpected argument {positional[0]!r}; see trustclip {command} --help.")
    return method(name, **changes)


def taken(argv: list[str], flag: str) -> tuple[list[str], str | None]:
    """``argv`` without ``flag VALUE`` (or ``flag=VALUE``), and the value."""
    for i, argument in enumerate(argv):
        if argument.startswith(flag + "="):
            return argv[:i] + argv[i + 1 :], argument.partition("=")[2]
        if argument == flag:
            if i + 1 == len(argv):
                raise ValueError(f"{flag} needs a name.")
            return argv[:i] + argv[i + 2 :], argv[i + 1]
    return argv, None
