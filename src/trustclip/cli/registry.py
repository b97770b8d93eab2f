"""The commands: of the library, of the training program, and of other installed distributions.

An entry point of ``trustclip.commands`` names a mapping ``{command: Command}``; the module that
holds it is imported for the help, so it should import nothing else.
"""

import re
from contextlib import suppress
from functools import cache, partial
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
    extra: str = "cli"  # of the distribution, to install for it; each includes ``cli``


_method = partial(Command, "trustclip.cli.commands.constraints")
_evidence = partial(Command, "trustclip.cli.commands.evidence")
_tokens = partial(Command, "trustclip.cli.commands.tokens")
_machine = partial(Command, "trustclip.cli.commands.machine")
_stored = partial(Command, "trustclip.cli.commands.stored")
_start = partial(Command, "trustclip.cli.commands.experiments", extra="train")
_experiment = partial(_start, records=True)
_run = partial(_experiment, continues=True)

#: The commands of the library; they load no module of `trustclip.train`.
LIBRARY = {
    "report": _evidence("a page, tables and figures from run directories and logs", extra="report"),
    "explain": _evidence("what the constraint did in a run or in another trainer's log"),
    "tokens": _tokens("which tokens a constraint cut, completion by completion"),
    "microscope": _tokens("a page that shows tokens under several methods", extra="report"),
    "shadow": _tokens("what other methods would have cut, and the threshold for a share"),
    "compare": _evidence("differences between evaluations, with intervals and p-values"),
    "power": _evidence("how many seeds would find a gap, from the runs of a pilot"),
    "methods": _method("the constraints and their hyper-parameters"),
    "bounds": _method("a method's ratio interval, also as settings of TRL and verl"),
    "check": _method("whether a method is right, such as one of your own: file.py:Class"),
    "conform": _method("whether any trainer's loss is a method: file.py:function --as METHOD"),
    "doctor": _machine("versions, devices, and whether a schedule lets a constraint act"),
}
#: Those of the training program, and of the library.
COMMANDS = {
    "demo": _run("a small policy learns under a constraint, on a CPU, in minutes"),
    "init": _start("write a first recipe, and print its dry run and the next commands"),
    "try": _start("a few completions of a model: prompt, answer, reward, length, speed"),
    "sft": _run("fine-tune a model on worked solutions"),
    "rl": _run("train a model on verified rewards under a constraint"),
    "eval": _run("Mean@K and Pass@K of a model, with intervals; stored answers graded again"),
    "run": _run("a whole experiment from one file: fine-tune, train, evaluate"),
    "resume": _run("continue a run from its folder, also with more updates"),
    "suite": _experiment("methods x seeds x models, resumable, with a table of differences"),
    "recipes": _stored("the recipes and suites that come with trustclip; copy one"),
    "verify": _stored("which files of a run are whole, changed or missing"),
    "decontaminate": _stored("find test problems that occur in a training set"),
    **LIBRARY,
}


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
        with suppress(PackageNotFoundError):
            for requirement in requires(package) or []:
                found = re.match(r"([\w.-]+).*extra == ['\"](?!dev['\"])([\w-]+)", requirement)
                if found and found[1].lower().replace("-", "_") == target:
                    return f"'{package}[{found[2]}]'"
    return None
