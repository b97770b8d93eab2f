"""The command ``trustclip``: dispatch of its subcommands, and the messages of failures.

A command's own imports wait until it is called, so that help and wrong usage answer at once.
"""

import importlib
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from trustclip.constraints.names import unknown

#: Command -> (module of `trustclip.cli.commands` with a function of its name, help).
COMMANDS = {
    "demo": ("experiments", "a small policy learns under a constraint, on a CPU, in minutes"),
    "sft": ("experiments", "fine-tune a model on worked solutions"),
    "rl": ("experiments", "train a model on verified rewards under a constraint"),
    "eval": ("experiments", "Mean@K and Pass@K of a model on problem sets, with intervals"),
    "run": ("experiments", "a whole experiment from one file: fine-tune, train, evaluate"),
    "suite": ("experiments", "methods x seeds x models, resumable, with a table of differences"),
    "report": ("evidence", "a page, tables and figures from run directories and logs"),
    "tokens": ("tokens", "which tokens a constraint cut, completion by completion"),
    "explain": ("evidence", "what the constraint did in a run or in another trainer's log"),
    "shadow": ("shadows", "what other methods would have cut of the tokens of a run"),
    "suggest": ("shadows", "the threshold at which a method would have cut a share of the tokens"),
    "compare": ("evidence", "differences between evaluations, with intervals and p-values"),
    "grade": ("evidence", "re-grade stored completions"),
    "decontaminate": ("evidence", "find test problems that occur in a training set"),
    "paper": ("evidence", "the ATR-GRPO paper's tables, audited"),
    "methods": ("constraints", "the constraints and their hyper-parameters"),
    "bounds": ("constraints", "the ratio interval of a method, and its twin in TRL and verl"),
    "theory": ("constraints", "the paper's theorems, computed on both sides"),
    "tabular": ("constraints", "methods on a bandit and a tree, where everything is exact"),
    "bench": ("bench", "cost of the head, the bounds and the methods, compared with others"),
    "control": ("constraints", "methods in PPO on Gymnasium environments, over seeds"),
    "doctor": ("machine", "versions, devices, and whether a schedule lets a constraint act"),
}

#: Packages of the extra ``cli``, which the library alone does not need.
NEEDED = ("tyro", "yaml", "rich", "scipy")

USAGE = "usage: trustclip COMMAND [options]        trustclip COMMAND --help"

#: Commands that can be continued by the same command after SIGTERM or Ctrl-C.
CONTINUED = ("demo", "sft", "rl", "eval", "run")

STATUS = """\
exit status:
  0    done; or stopped by Ctrl-C or SIGTERM with everything saved, where the same command
       continues (demo, sft, rl, eval, run)
  1    a check failed (doctor), runs of a suite are not finished, or a bug, with its traceback
  2    a wrong setting or file, a full disk, a missing package, training that cannot go on:
       stated in one message; TRUSTCLIP_TRACEBACK=1 shows the traceback too
  130  Ctrl-C (143 SIGTERM) in any other command
  141  the reader of the output has closed the pipe"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point.

    Returns:
      The exit status: 0 for success, or for a run that was asked to stop and is saved; 1 for a
      check that failed; 2 for bad input and for what the machine refuses, stated in one message;
      130 and 143 after Ctrl-C and SIGTERM in a command that does not continue; 141 when the
      reader of the output has closed the pipe.
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
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        print(
            f"trustclip {name}: {', '.join(missing)} not installed: the commands need the extra "
            "`cli`, which `train` and `report` include: pip install 'trustclip[cli]'.",
            file=sys.stderr,
        )
        return 2
    _be_quiet()
    _leave_on_sigterm(name)
    try:
        module = importlib.import_module(f"trustclip.cli.commands.{COMMANDS[name][0]}")
        code = getattr(module, "evaluate" if name == "eval" else name)(rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The rest of the buffer has nowhere to go, and Python would report that at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _stopped(name, signal.SIGINT)
    except Exception as error:
        text = _explained(error)
        if text is None:
            raise
        if os.environ.get("TRUSTCLIP_TRACEBACK"):
            traceback.print_exc()
        print(f"trustclip {name}: {text}", file=sys.stderr)
        return 2


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        ["Policy-divergence constraints for GRPO.", "", USAGE, "", "commands:", *lines, "", STATUS]
    )


def _leave_on_sigterm(name: str) -> None:
    """Exit cleanly on SIGTERM, which preemptible machines send before they kill.

    Training replaces this handler while it runs, to save first; everywhere else completed work is
    on disk already.
    """

    def leave(*_: Any) -> None:
        sys.exit(_stopped(name, signal.SIGTERM))

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, leave)


def _stopped(name: str, number: signal.Signals) -> int:
    """Report that a signal has ended the command; returns its exit status."""
    continued = name in CONTINUED
    text = "stopped; the same command continues." if continued else "interrupted."
    print(f"\n{text}", file=sys.stderr)
    return 0 if continued else 128 + number


def _explained(error: Exception) -> str | None:
    """The message of an error for the user; None for a bug, which keeps its traceback."""
    if isinstance(error, ImportError):
        return _missing(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fspath(error.filename)!s}: {error.strerror}."
    # An error of these libraries can only have been raised if they are imported.
    for module, kind in (("yaml", "YAMLError"), ("safetensors", "SafetensorError")):
        if module in sys.modules and isinstance(error, getattr(sys.modules[module], kind)):
            return " ".join(str(error).split())
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and isinstance(error, distributed.DistStoreError | distributed.DistNetworkError):
        rank, reason = os.environ.get("RANK", "0"), " ".join(str(error).split())
        return f"rank {rank} has not found the other ranks of the job: {reason} Start it again."
    from trustclip.durable.store import TrainingError

    return str(error) if isinstance(error, ValueError | OSError | TrainingError) else None


def _missing(error: ImportError) -> str | None:
    """Instructions to install what could not be imported; None for a module of trustclip."""
    module = (error.name or "").partition(".")[0]
    if module == "trustclip":
        return None
    if not isinstance(error, ModuleNotFoundError) or not module:
        return str(error)
    extra = _extra(module)
    return f"the package {module} is not installed: pip install " + (
        f"'trustclip[{extra}]'." if extra else f"{module}."
    )


def _extra(module: str) -> str | None:
    """The extra of trustclip that installs a module, by the metadata of the installed package."""
    from importlib import metadata

    distribution = {"yaml": "pyyaml"}.get(module, module).lower()
    try:
        requirements = metadata.requires("trustclip") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)", requirement)
        if not name or not extra or extra[1] == "dev":
            continue
        if name[0].lower().replace("-", "_") == distribution:
            return extra[1]
    return None


def _be_quiet() -> None:
    """Hide deprecation and advisory notices of libraries from the user's terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    # What trustclip itself is about to remove, a user of the commands has to change.
    warnings.filterwarnings("once", "`method_args` is deprecated", DeprecationWarning)
    # A user needs the text of a warning, not the source line that it comes from.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


if __name__ == "__main__":
    sys.exit(main())
