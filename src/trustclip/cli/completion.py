"""Shell completion of the options that the commands declare, by shtab."""

import argparse
import re
from dataclasses import fields
from pathlib import Path

import shtab

from trustclip.cli.arguments import options_class
from trustclip.cli.main import ALLOW_CODE
from trustclip.cli.options import add, options_of
from trustclip.cli.registry import COMMANDS, PATH, added_commands, function_of
from trustclip.constraints.base import methods
from trustclip.train.files import PRESETS

#: Commands whose first argument chooses, and what it may be.
FIRST: dict[str, tuple[str, ...]] = dict.fromkeys(("bounds", "check", "suggest"), tuple(methods()))


def script(shell: str) -> str:
    """The script that completes commands, options and values in a shell that shtab supports."""
    return shtab.complete(parser(), shell)


def parser() -> argparse.ArgumentParser:
    """The whole program as one argparse parser, for completion only."""
    program = argparse.ArgumentParser("trustclip")
    program.add_argument("--version", action="store_true", help="versions of what results need")
    commands = program.add_subparsers()
    for command, about in {**COMMANDS, **added_commands()}.items():
        inner = commands.add_parser(command, help=about.does)
        cls = options_class(function_of(command, about))
        for one in options_of(cls) if cls is not None else ():
            action = add(inner, one)
            if re.search(r"\bmethods?$", one.path):
                action.choices = tuple(methods())
            elif Path in one.kinds:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        _add_own_arguments(inner, command, about.first or FIRST.get(command))
    return program


def _add_own_arguments(
    inner: argparse.ArgumentParser, command: str, first: tuple[str, ...] | None
) -> None:
    """Arguments that commands read themselves: help texts list them, no class declares them."""
    inner.add_argument(ALLOW_CODE, action="store_true", help="import what a file names")
    if first and first != PATH:
        inner.add_argument("first", choices=first)
    if command in ("run", "resume", "suggest") or first == PATH:
        inner.add_argument("path", metavar="PATH").complete = shtab.FILE  # type: ignore[attr-defined]
    if command in ("run", "sft", "rl", "eval"):
        inner.add_argument("--dry-run", action="store_true")
    if command in PRESETS:
        inner.add_argument("--preset", choices=tuple(PRESETS[command]))
    if command in (*FIRST, "rl", "run"):
        dotted = "method." if command in ("rl", "run") else ""
        hyper = {f.name for m in methods().values() for f in fields(m)}  # type: ignore[arg-type]
        for name in sorted(hyper):
            inner.add_argument(f"--{dotted}{name.replace('_', '-')}")
