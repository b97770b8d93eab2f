"""Completion of the command line in shells: shtab's, of the options that ``--help`` shows."""

import argparse
import contextlib
import io
import re
from dataclasses import fields
from typing import Any

import shtab
import tyro

from trustclip.cli.arguments import asked
from trustclip.cli.main import ALLOW_CODE, COMMANDS, main
from trustclip.cli.registry import PATH, added
from trustclip.constraints.base import methods
from trustclip.recipes.files import PRESETS
from trustclip.recipes.settings import Recipe

#: Commands whose first argument chooses, and what it may be.
FIRST: dict[str, tuple[str, ...]] = dict.fromkeys(("bounds", "suggest"), tuple(methods()))


def script(shell: str) -> str:
    """What a shell reads to complete commands, options, and values that can be listed.

    Args:
      shell: one of ``shtab.SUPPORTED_SHELLS``.
    """
    return shtab.complete(parser(), shell)


def parser() -> argparse.ArgumentParser:
    """The whole program as one parser, which nothing is parsed with."""
    program = argparse.ArgumentParser("trustclip")
    program.add_argument("--version", action="store_true", help="versions of what results need")
    commands = program.add_subparsers()
    every = {name: does for name, (_, does) in COMMANDS.items()}
    for command, does in (every | {name: one.does for name, one in added().items()}).items():
        cls = _shown_by_help(command)
        # tyro's copy of argparse makes a parser of its own kind, which serves as a parent.
        shown: list[Any] = [] if cls is None else [tyro.extras.get_parser(cls)]
        inner = commands.add_parser(command, help=does, parents=shown, add_help=not shown)
        _add_what_help_tells(inner, command)
        for action in inner._actions:
            if any(re.search(r"[-.]methods?$", option) for option in action.option_strings):
                action.choices = tuple(methods())
            elif action.metavar is not None and "PATH" in action.metavar:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return program


def _add_what_help_tells(inner: argparse.ArgumentParser, command: str) -> None:
    """Arguments that commands read themselves: help tells of them, and no class has them."""
    inner.add_argument(ALLOW_CODE, action="store_true", help="import what a file names")
    first = added()[command].first if command in added() else FIRST.get(command)
    if first and first != PATH:
        inner.add_argument("first", choices=first)
    if command in ("run", "resume", "suggest") or first == PATH:
        inner.add_argument("path", metavar="PATH")
    if command == "run":
        inner.add_argument("--dry-run", action="store_true")
    if command in PRESETS:
        inner.add_argument("--preset", choices=tuple(PRESETS[command]))
    if command in ("bounds", "suggest", "rl", "run"):
        dotted = "method." if command in ("rl", "run") else ""
        hyper = {f.name for m in methods().values() for f in fields(m)}  # type: ignore[arg-type]
        for name in sorted(hyper):
            inner.add_argument(f"--{dotted}{name.replace('_', '-')}")


def _shown_by_help(command: str) -> type | None:
    """The class whose options ``--help`` shows; none where a package is missing."""
    if command in ("run", "resume"):
        return Recipe
    silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with silent[0], silent[1], asked() as classes, contextlib.suppress(SystemExit):
        main([command, "--help"])
    return classes[0] if classes else None
