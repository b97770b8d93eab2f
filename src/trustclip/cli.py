"""The command ``trustclip``: which words name which function, and how errors are told.

A command's own imports wait until it is called, so that help and typing errors answer at once.
"""

import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from trustclip.names import unknown

#: Command -> (module of `trustclip.commands` with a function of its name, help).
COMMANDS = {
    "demo": ("experiments", "a small policy learns under a constraint, on a CPU, in minutes"),
    "sft": ("experiments", "fine-tune a model on worked solutions"),
    "rl": ("experiments", "train a model on verified rewards under a constraint"),
    "eval": ("experiments", "Mean@K and Pass@K of a model on problem sets, with intervals"),
    "run": ("experiments", "a whole experiment from one file: fine-tune, train, evaluate"),
    "suite": ("experiments", "methods x seeds x models, resumable, with a table of differences"),
    "report": ("evidence", "a page, tables and figures from run directories"),
    "explain": ("evidence", "what the gate of a run did, in sentences, and what to try next"),
    "compare": ("evidence", "what the difference between evaluations is worth"),
    "grade": ("evidence", "grade stored completions again"),
    "decontaminate": ("evidence", "test problems that stand in a training set"),
    "paper": ("evidence", "the ATR-GRPO paper's tables, audited"),
    "methods": ("constraints", "the constraints and their hyper-parameters"),
    "bounds": ("constraints", "the ratio interval of a method, and its twin in TRL and verl"),
    "theory": ("constraints", "the paper's theorems, computed on both sides"),
    "tabular": ("constraints", "methods on a bandit and a tree, where everything is exact"),
    "bench": ("bench", "what the head, the bounds and the methods cost, next to others"),
    "control": ("constraints", "methods in PPO on Gymnasium environments, over seeds"),
    "doctor": ("machine", "versions, devices, and whether a schedule lets a constraint act"),
}

USAGE = "usage: trustclip COMMAND [options]        trustclip COMMAND --help"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point.

    Returns:
      0 for success, 2 for bad input (told in one message), 130 after Ctrl-C, 141 when whoever read
      the output has closed it.
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
    _leave_on_sigterm()
    module = importlib.import_module(f"trustclip.commands.{COMMANDS[name][0]}")
    try:
        code = getattr(module, "evaluate" if name == "eval" else name)(rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still in the buffer has nowhere to go, and Python would say so at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
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


def _leave_on_sigterm() -> None:
    """Preemptible machines ask before they kill. Training replaces this while it goes on, to save
    first; everywhere else what is done is on disk already.
    """

    def leave(*_: Any) -> None:
        print("\nstopped; the same command continues.", file=sys.stderr)
        sys.exit(0)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, leave)


def _be_quiet() -> None:
    """Keep the notices of libraries about their own future away from the user's terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)


if __name__ == "__main__":
    sys.exit(main())
