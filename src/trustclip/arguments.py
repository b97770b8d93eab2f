"""Command-line arguments into the settings classes, by tyro."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from trustclip.names import nearest, unknown

if TYPE_CHECKING:
    from trustclip.method import Method

T = TypeVar("T")


def parse(
    cls: type[T], argv: Sequence[str], command: str, presets: Mapping[str, T] | None = None
) -> T:
    """Settings from arguments; tyro prints and exits with 2 where they do not fit.

    Two things come before tyro: ``--preset NAME`` chooses the defaults, and ``--method.NAME
    VALUE`` is read as a hyper-parameter of the method that ``--method`` names, typed and checked
    by that method's own class.

    Args:
      cls: settings class.
      argv: arguments after the command.
      command: name of the command, for its help.
      presets: fast configurations by name.

    Raises:
      ValueError: unknown preset, method or hyper-parameter, or a value out of range.
    """
    rest, preset = taken(list(argv), "--preset")
    default: Any = None
    if preset is not None:
        if preset not in (presets or {}):
            raise ValueError(unknown(f"preset of {command}", preset, presets or {}))
        default = (presets or {})[preset]
    rest, of_method = _split(rest, "--method.")
    options: dict[str, Any] = {} if default is None else {"default": default}
    hidden = tyro.conf.configure(tyro.conf.OmitArgPrefixes)
    settings: Any = tyro.cli(hidden(cls), args=rest, prog=f"trustclip {command}", **options)
    if of_method or hasattr(settings, "method"):
        settings = _with_method(settings, of_method)
    return settings


def _split(argv: list[str], prefix: str) -> tuple[list[str], list[str]]:
    """The other arguments, and those that begin with ``prefix``, as ``--`` without it."""
    rest, taken, i = [], [], 0
    while i < len(argv):
        if argv[i].startswith(prefix):
            taken.append("--" + argv[i].removeprefix(prefix))
            while i + 1 < len(argv) and not argv[i + 1].startswith("--"):
                i += 1
                taken.append(argv[i])
        else:
            rest.append(argv[i])
        i += 1
    return rest, taken


def _with_method(settings: Any, of_method: list[str]) -> Any:
    from trustclip.method import method_class

    cls = method_class(settings.method)
    if not of_method:
        return settings
    chosen = method_from(cls, of_method, f"--method {settings.method}")
    defaults = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
    changed = {
        name: value
        for name, value in chosen.to_dict().items()
        if name in defaults and value != _plain(defaults[name])
    }
    return replace(settings, method_args={**settings.method_args, **changed})


def _plain(value: Any) -> Any:
    """A default as `Method.to_dict` writes it."""
    return value.to_dict() if hasattr(value, "to_dict") else value


def method_from(cls: "type[Method]", argv: Sequence[str], command: str) -> "Method":
    """A method from its hyper-parameters as arguments, e.g. ``["--delta", "0.05"]``.

    In place of a number a controller may stand, as YAML writes it: ``["--delta", "{controller:
    target_gate, share: 0.02}"]``.

    Raises:
      ValueError: unknown hyper-parameter, a value out of range, or no controller.
    """
    from trustclip.method import method

    allowed = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for argument in argv:
        key = argument.removeprefix("--").partition("=")[0].replace("-", "_")
        if argument.startswith("--") and key not in (*allowed, "help"):
            raise ValueError(unknown(f"hyper-parameter of {command}", key, allowed))
    words = [w for a in argv for w in (a.split("=", 1) if a.startswith("--") else [a])]
    pairs = [*pairwise(["", *words])]
    controllers = {flag: one for flag, text in pairs if (one := _controller(flag, text))}
    rest = [word for before, word in pairs if not {before, word} & controllers.keys()]
    chosen = tyro.cli(cls, args=rest, prog=f"trustclip {command}")
    given = {flag.removeprefix("--").replace("-", "_"): one for flag, one in controllers.items()}
    return method(**{**chosen.to_dict(), **given}) if given else chosen


def _controller(flag: str, text: str) -> Mapping[str, Any] | None:
    """The controller that ``text`` writes down; None for what is no mapping, or a method's.

    Raises:
      ValueError: a mapping that is neither.
    """
    from trustclip.controllers import NAMED
    from trustclip.recipes.files import parse_scalar

    if not (flag.startswith("--") and text.lstrip().startswith("{")):
        return None
    value = parse_scalar(text)
    given = list(value) if isinstance(value, Mapping) else []
    if "controller" in given:
        return value
    if "name" in given:
        return None
    near = nearest("controller", given)
    hint = f" Did you mean `controller` by {near!r}?" if near else ""
    raise ValueError(
        f"{flag} {text!r} is neither a number nor a controller, {{controller: NAME, ...}}.{hint} "
        f"NAME may be: {', '.join(NAMED)}."
    )


def changes_of(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Positional arguments, and options as changes to a file: ``{dotted path: value}``.

    Example:
      >>> changes_of(["a.yaml", "--rl.learning-rate", "1e-5", "--seed=1", "--rl.use-vllm"])
      (['a.yaml'], {'rl.learning_rate': 1e-05, 'seed': 1, 'rl.use_vllm': True})
    """
    from trustclip.recipes.files import parse_scalar

    positional: list[str] = []
    changes: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            positional.append(argument)
            continue
        name, given, value = argument.removeprefix("--").partition("=")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        changes[name.replace("-", "_")] = parse_scalar(value)
    return positional, changes


def passthrough(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Arguments without ``--trl.NAME VALUE``, and those as a mapping."""
    rest, of_trl = _split(argv, "--trl.")
    return rest, changes_of(of_trl)[1] if of_trl else {}


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
