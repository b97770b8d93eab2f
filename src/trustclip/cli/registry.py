"""Commands that other installed distributions add: the entry points of ``trustclip.commands``.

An entry point names a mapping ``{command: Command}``; the module that holds it is imported for the
help, so it should import nothing else.
"""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, requires
from typing import NamedTuple

GROUP = "trustclip.commands"

#: Distributions of this project that add commands -> their commands, to say what to install.
KNOWN = {
    "trustclip-lab": ("lab", "arena", "theory", "tabular", "control", "paper", "bench", "atlas")
}

#: Of `Command.first`: a file or a folder.
PATH = ("PATH",)


class Command(NamedTuple):
    """A command of another distribution."""

    #: Dotted name of the module whose function, named like the command, takes the arguments and
    #: returns the exit status.
    module: str
    does: str  # its help, a line without a full stop
    continues: bool = False  # whether the same command goes on after SIGTERM or Ctrl-C
    first: tuple[str, ...] = ()  # what its first argument may be, for shells; or `PATH`


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
