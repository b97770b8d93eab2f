"""Conversion of command-line arguments into settings.

`settings` fills the settings of an experiment: options are changes by dotted path, made
to a preset or to a recipe file and checked by `trustclip.recipes.files.build`. `parse` is tyro's,
for the options of every other command.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from trustclip.cli.main import described
from trustclip.constraints.names import unknown
from trustclip.runs.terminal import say

if TYPE_CHECKING:
    from trustclip.constraints.base import Method

T = TypeVar("T")

_REGISTRY = ConstructorRegistry()
#: Where `parse` leaves the class of the options instead of parsing any; see `asked`.
_ASKED: ContextVar[list[type] | None] = ContextVar("_ASKED", default=None)

#: What follows the options of an experiment command: how they are used.
EXAMPLES = {
    "demo": """\
examples:
  trustclip demo
  trustclip demo --method clip_higher --method.high 0.3 --seed 3""",
    "sft": """\
--preset tiny sets everything for a small model and generated problems, seconds on a CPU.

examples:
  trustclip sft --preset tiny
  trustclip sft --model Qwen/Qwen3-1.7B --dataset solved.jsonl --output-dir runs/sft""",
    "rl": """\
--preset tiny sets everything for a small model and generated problems, seconds on a CPU;
--method.NAME VALUE sets a hyper-parameter of the method (trustclip methods lists both), and
--trl.NAME VALUE any other field of TRL's GRPOConfig.

examples:
  trustclip rl --preset tiny --method clip --method.epsilon 0.1
  trustclip rl --model Qwen/Qwen3-1.7B --dataset problems.jsonl --output-dir runs/rl
  trustclip rl ... --reward rewards.py:polite --columns.prompt question""",
    "eval": """\
--preset tiny sets everything for a small model and generated problems, seconds on a CPU.

examples:
  trustclip eval --preset tiny
  trustclip eval --model runs/rl/final --tasks amc23,aime24 --output-dir runs/eval
  trustclip compare runs/eval runs/eval-other""",
}


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


def require(*packages: str) -> None:
    """Refuse a command at once, where a package that it imports at its end is missing.

    Raises:
      ModuleNotFoundError: naming the first; the program answers with the extra that holds it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def parse(
    cls: type[T], argv: Sequence[str], command: str, presets: Mapping[str, T] | None = None
) -> T:
    """Parse the options of a command with tyro, which prints the help and exits where asked to.

    Args:
      cls: class of the options.
      argv: arguments after the command.
      command: name of the command, for its help.
      presets: defaults by name, for ``--preset NAME``.

    Raises:
      ValueError: wrong usage, unknown preset, or a value out of range.
    """
    if (classes := _ASKED.get()) is not None:
        classes.append(cls)
        raise SystemExit(0)
    rest, preset = taken(list(argv), "--preset")
    options: dict[str, Any] = {}
    undescribed = (cls.__doc__ or "").startswith(f"{cls.__name__}(")  # a dataclass's signature
    if undescribed and (does := described(command)):
        options["description"] = f"{does[0].upper()}{does[1:]}."
    if preset is not None:
        if preset not in (presets or {}):
            raise ValueError(unknown(f"preset of {command}", preset, presets or {}))
        options["default"] = (presets or {})[preset]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                cls, args=rest, prog=f"trustclip {command}", registry=_REGISTRY, **options
            )
    except SystemExit as end:
        if not end.code:
            raise
        names = [
            f"--{field.name.replace('_', '-')}"
            for field in fields(cls)  # type: ignore[arg-type]
            if "Positional" not in str(field.type) and "POSITIONAL" not in str(field.type)
        ]
        told = _in_a_sentence(said.getvalue(), names, command)
        complaint = told.removeprefix(f"{cls.__name__}: ")
    raise ValueError(complaint)


def _in_a_sentence(box: str, names: Sequence[str], command: str) -> str:
    """What tyro says of wrong usage in a box, as the other commands say it.

    Example:
      >>> _in_a_sentence("\u2502 Unrecognized options: --sed, 3 \u2502", ["--seeds"], "control")
      "unknown option of control '--sed'; did you mean '--seeds'? Allowed: --seeds."
    """
    rows = [row.strip("\u2502 ") for row in box.splitlines() if row.startswith("\u2502")]
    ruled = [place for place, row in enumerate(rows) if row and not row.strip("\u2500")]
    first = min(ruled, default=len(rows))
    text = " ".join(rows[:first]) or " ".join(box.split())
    see = f"; see trustclip {command} --help."
    if found := re.match(r"Unrecognized options: (.+?)(,|$)", text):
        if found[1].startswith("-"):
            return unknown(f"option of {command}", found[1], names)
        return f"unexpected argument {found[1]!r}{see}"
    if text.startswith("Missing from"):
        # Of an argument that is missing tyro shows the name, and under it, deeper, what it is.
        lacking = re.findall(r"^\u2502 {5}(\S+)", box.partition("\u2502 \u2500")[0], re.MULTILINE)
        return f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing{see}"
    if found := re.match(r"Missing value for argument '(.+?)'", text):
        return f"{found[1]} needs a value{see}"
    kind = next((row for row in rows if re.match(r"(--\S+|[A-Z|]+) [{A-Z]", row)), "")
    if found := re.match(
        r"Error parsing (\S+): (?:invalid literal|could not convert|no type)", text
    ):
        value = re.findall(r"'([^']*)'", text)[-1:] or ["nothing"]
        return f"{kind or found[1]}: got {value[0]!r}{see}"
    return f"{text.removeprefix('Error parsing ').rstrip('.')}{see}"


@contextlib.contextmanager
def asked() -> Iterator[list[type]]:
    """Collect the classes of options that commands ask `parse` for, which then leaves them."""
    classes: list[type] = []
    token = _ASKED.set(classes)
    try:
        yield classes
    finally:
        _ASKED.reset(token)


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
        try:
            parse(cls, ["--help"], command)
        finally:
            say(EXAMPLES[command])
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
