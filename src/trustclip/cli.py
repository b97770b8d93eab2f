"""The command ``trustclip``: which words name which function, and how errors are told.

A command's own imports wait until it is called, so that help and typing errors answer at once.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from trustclip.names import unknown

#: Command -> (module and function that takes its arguments and returns an exit status, help).
COMMANDS = {
    "demo": ("recipe", "a small policy learns under a constraint, on a CPU, in minutes"),
    "sft": ("recipe", "fine-tune a model on worked solutions"),
    "rl": ("recipe", "train a model on verified rewards under a constraint"),
    "eval": ("recipe", "Mean@K and Pass@K of a model on problem sets, with intervals"),
    "grade": ("grade", "grade stored completions again"),
    "compare": ("compare", "what the difference between evaluations is worth"),
    "decontaminate": ("decontaminate", "test problems that stand in a training set"),
    "paper": ("paper", "the ATR-GRPO paper's tables, audited"),
    "methods": ("methods", "the constraints and their hyper-parameters"),
    "bounds": ("bounds", "the ratio interval of a method, and its twin in stock TRL and verl"),
    "doctor": ("doctor", "versions, devices, and whether a schedule lets a constraint act"),
}

USAGE = "usage: trustclip COMMAND [options]        trustclip COMMAND --help"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point.

    Returns:
      0 for success, 2 for bad input (told in one message), 130 after Ctrl-C.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        from trustclip import __version__

        print(__version__)
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        print(f"trustclip: {unknown('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    _be_quiet()
    command = getattr(importlib.import_module("trustclip.commands"), COMMANDS[name][0])
    try:
        return command(name, rest) if COMMANDS[name][0] == "recipe" else command(rest)
    except KeyboardInterrupt:
        print("\ninterrupted; what was done is in the run directory.", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError) as error:
        if os.environ.get("TRUSTCLIP_TRACEBACK"):
            raise
        print(f"trustclip {name}: {error}", file=sys.stderr)
        return 2


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        ["Policy-divergence constraints for GRPO.", "", USAGE, "", "commands:", *lines]
    )


def _be_quiet() -> None:
    """Keep the notices of libraries about their own future away from the user's terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)


if __name__ == "__main__":
    sys.exit(main())
