"""The commands: of the library, of the training program, and of other installed distributions.

An entry point of ``trustclip.commands`` names a mapping ``{command: Command}``; the module that
holds it is imported for the help, so it should import nothing else.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, requires
from typing import NamedTuple

GROUP = "trustclip.commands"

#: Distributions of this project that add commands -> their commands, to say what to install.
KNOWN = {"trustclip-lab": ("lab", "arena", "theory", "tabular", "control", "paper", "bench")}


class Command(NamedTuple):
    """A command: what it does, and the module that is imported when it is called."""

    #: Dotted name of the module with a function of the command's name, which takes the arguments;
    #: or with a class so called, whose fields are the options. The call returns the exit status, or
    #: nothing for 0.
    module: str
    does: str  # its help, a line without a full stop
    continues: bool = False  # whether the same command goes on after SIGTERM or Ctrl-C
    records: bool = False  # what it does goes into a folder, so it outlives its output
    extra: str = "cli"  # of the distribution, to install for it


#: Commands of the training program -> (module of `trustclip.cli.commands`, help).
_PROGRAM = {
    "demo": ("experiments", "a small policy learns under a constraint, on a CPU, in minutes"),
    "init": ("start", "a first recipe from a model and data, its dry run and the commands"),
    "try": ("start", "a few completions of a model: prompt, answer, reward, length, speed"),
    "sft": ("experiments", "fine-tune a model on worked solutions"),
    "rl": ("experiments", "train a model on verified rewards under a constraint"),
    "eval": (
        "experiments",
        "Mean@K and Pass@K of a model, with intervals; stored answers graded again",
    ),
    "run": ("experiments", "a whole experiment from one file: fine-tune, train, evaluate"),
    "resume": ("experiments", "continue a run from its folder, also with more updates"),
    "suite": ("experiments", "methods x seeds x models, resumable, with a table of differences"),
    "recipes": ("experiments", "the recipes and suites that come with trustclip; copy one"),
    "verify": ("stored", "which files of a run are whole, changed or missing"),
    "decontaminate": ("stored", "find test problems that occur in a training set"),
}
#: Commands of the library, in the same way; they load no module of `trustclip.train`.
_LIBRARY = {
    "report": ("evidence", "a page, tables and figures from run directories and logs"),
    "explain": ("evidence", "what the constraint did in a run or in another trainer's log"),
    "tokens": ("inspection", "which tokens a constraint cut, completion by completion"),
    "microscope": ("inspection", "a page of completions token by token, under several methods"),
    "shadow": ("shadows", "what other methods would have cut, and the threshold for a share"),
    "compare": ("evidence", "differences between evaluations, with intervals and p-values"),
    "power": ("evidence", "how many seeds would find a gap, from the runs of a pilot"),
    "methods": ("constraints", "the constraints and their hyper-parameters"),
    "bounds": ("constraints", "a method's ratio interval, also as settings of TRL and verl"),
    "check": ("constraints", "whether a method is right, such as one of your own: file.py:Class"),
    "conform": (
        "constraints",
        "whether any trainer's loss is a method: file.py:function --as METHOD",
    ),
    "doctor": ("machine", "versions, devices, and whether a schedule lets a constraint act"),
}
#: Commands that can be continued by the same command after SIGTERM or Ctrl-C.
_RESUMABLE = {"demo", "sft", "rl", "eval", "run", "resume"}
#: Commands that record what they do in a folder: they outlive their output.
_RECORDING = {*_RESUMABLE, "suite"}
#: The extra to install for a command that needs more than ``cli``, which all of these include.
_EXTRAS: dict[str, str] = {
    **dict.fromkeys(("demo", "init", "try", "sft", "rl", "eval", "run", "suite"), "train"),
    **dict.fromkeys(("report", "microscope"), "report"),
}


def _commands(rows: Mapping[str, tuple[str, str]]) -> dict[str, Command]:
    return {
        name: Command(
            f"trustclip.cli.commands.{module}",
            does,
            continues=name in _RESUMABLE,
            records=name in _RECORDING,
            extra=_EXTRAS.get(name, "cli"),
        )
        for name, (module, does) in rows.items()
    }


#: The library's commands, and all of this distribution.
LIBRARY = _commands(_LIBRARY)
COMMANDS = _commands(_PROGRAM) | LIBRARY


@cache
def distributions() -> dict[str, dict[str, Command]]:
    """The added commands of each installed distribution that has any."""
    commands: dict[str, dict[str, Command]] = {}
    for point in entry_points(group=GROUP):
        name = point.dist.name if point.dist else point.name
        commands.setdefault(name, {}).update(point.load())
    return commands


def added_commands() -> dict[str, Command]:
    return {name: one for commands in distributions().values() for name, one in commands.items()}


def command_of(name: str) -> Command | None:
    """The command of a name, if there is one."""
    return None if name.startswith("-") else COMMANDS.get(name) or added_commands().get(name)


def extra(module: str) -> str | None:
    """What to install for a module: an extra of trustclip or of another distribution, quoted."""
    target = {"yaml": "pyyaml"}.get(module, module).lower()
    for package in ("trustclip", *distributions()):
        try:
            requirements = requires(package) or []
        except PackageNotFoundError:
            continue
        for requirement in requirements:
            name = re.match(r"[\w.-]+", requirement)
            marker = re.search(r"extra == ['\"]([\w-]+)", requirement)
            if not name or not marker or marker[1] == "dev":
                continue
            if name[0].lower().replace("-", "_") == target:
                return f"'{package}[{marker[1]}]'"
    return None
