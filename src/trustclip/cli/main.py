"""The command ``trustclip``: dispatch of its subcommands, and the messages of failures.

A command's own imports wait until it is called, so that help and wrong usage answer at once.
"""

import contextlib
import errno
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from types import FrameType
from typing import Any, NoReturn

from trustclip import __version__
from trustclip.cli import registry
from trustclip.cli.registry import COMMANDS, command_of
from trustclip.cli.streams import Tolerant, complain, discard_output, occupy_closed, write_readably
from trustclip.support.consent import ALL, consent, names_in
from trustclip.support.names import TrainingError, unknown
from trustclip.support.stops import Requests, listen, unlisten
from trustclip.support.text import harmless

#: Packages of the extra ``cli``, which the library alone can do without.
CLI_PACKAGES = ("yaml", "rich", "scipy")

#: Words that people try -> the right ones.
INSTEAD = {"help": "--help", "version": "--version", "train": "rl"}

USAGE = """\
Policy-divergence constraints for GRPO.

usage: trustclip COMMAND [options]        trustclip COMMAND --help
       trustclip --version

commands:"""

#: Option of any command: consent to import what files name.
ALLOW_CODE = "--allow-code"

STATUS = """\
any command:
  {None}|INT    in a help text: a number, or None to leave it unset
  --allow-code  import the modules that a recipe, a suite or a run names, such as a method
                "package.module:Class", whose code then runs; what you type yourself is imported

exit status:
  0    done; or stopped by Ctrl-C or SIGTERM with everything saved, where the same command
       continues (demo, sft, rl, eval, run, resume)
  1    a check failed (check, doctor), runs of a suite are not finished, or a bug, with its
       traceback
  2    a wrong setting or file, a full disk, a missing package, training that cannot go on:
       stated in one message; TRUSTCLIP_TRACEBACK=1 shows the traceback too
  130  Ctrl-C (143: SIGTERM) in any other command, or a second time while a command is ending
  141  the reader of the output has closed the pipe"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, see `STATUS`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    before = listen(_requests(argv[0] if argv else ""))
    try:
        return _status(argv)
    finally:
        unlisten(before)


def _status(argv: Sequence[str]) -> int:
    name = argv[0] if argv else "--help"
    write_readably()
    one = command_of(name)
    output = Tolerant(sys.stdout) if one and one.records else sys.stdout
    try:
        try:
            with contextlib.redirect_stdout(output):
                return _dispatch(name, argv[1:])
        finally:
            output.flush()  # here, where a failure is handled, not when Python exits
    except BrokenPipeError:
        discard_output()
        return 141
    except KeyboardInterrupt:
        return _report_stop(name, signal.SIGINT)
    except Exception as error:
        text = _message_of(error)
        if text is None:
            raise
        if os.environ.get("TRUSTCLIP_TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is None:
            discard_output()  # it may be the output that cannot be written
        complain(f"trustclip {name}: {harmless(text)}")
        return 2


def _dispatch(name: str, rest: Sequence[str]) -> int:
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        print(f"trustclip {__version__} (of what results depend on: trustclip doctor)")
        return 0
    one = command_of(name)
    if one is None:
        complain(f"trustclip: {harmless(_no_command(name))}")
        return 2
    missing = [package for package in CLI_PACKAGES if find_spec(package) is None]
    if missing:
        install = f"pip install 'trustclip[{one.extra}]'"
        raise ValueError(f"{', '.join(missing)} not installed: {install}.")
    _silence_warnings()
    # Names that the user has typed may be imported, those in files only with consent.
    names = names_in([argument for argument in rest if not os.path.exists(argument)])
    argv = [part for part in rest if part != ALLOW_CODE]
    with consent(*([ALL] if ALLOW_CODE in rest else names)):
        module = importlib.import_module(one.module)
        function = {"eval": "evaluate", "try": "attempt"}.get(name, name)
        if hasattr(module, function):
            return getattr(module, function)(argv) or 0
        from trustclip.cli.arguments import parse

        return parse(getattr(module, name.title()), argv, name)() or 0


def command() -> NoReturn:
    """The program ``trustclip``: run one command and exit, along with the job's other ranks."""
    occupy_closed()
    listen(_requests(sys.argv[1] if len(sys.argv) > 1 else ""))
    try:
        status, completed = _status(sys.argv[1:]), True
    except SystemExit as end:  # by SIGTERM, in the middle of something
        if not isinstance(end.code, int):
            raise
        status, completed = end.code, False
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        from trustclip.train.durable.ranks import leave

        leave(status, done=completed)
    sys.exit(status)


def _no_command(name: str) -> str:
    if name.startswith("-"):
        return f"unknown option {name!r}; see trustclip --help."
    if package := next((p for p, commands in registry.KNOWN.items() if name in commands), None):
        return f"{name} is a command of the package {package}: pip install {package}."
    return unknown("command", name, [*COMMANDS, *registry.added_commands()], INSTEAD.get(name))


def _help() -> str:
    width = max(map(len, [*COMMANDS, *registry.added_commands()]))
    lines = []
    for package, commands in {"": COMMANDS, **registry.distributions()}.items():
        lines += ["", f"commands of {package}:"] if package else []
        lines += [f"  {name:<{width}}  {one.does}" for name, one in commands.items()]
    return "\n".join([USAGE, *lines, "", STATUS])


def _requests(name: str) -> Requests:
    """The handler that ends a command with a sentence on SIGTERM or Ctrl-C, and then at once.

    While training runs, its own handler comes first and saves; everywhere else completed work is
    already on disk.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            sys.exit(_report_stop(name, signal.SIGTERM))
        if _imports(frame) and "RANK" not in os.environ:  # else the other ranks are notified
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(_report_stop(name, signal.SIGINT))
        raise KeyboardInterrupt

    requests = Requests(lambda number, _: os._exit(128 + number))
    requests.once.append(leave)
    return requests


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported: there an exception can be swallowed."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _report_stop(name: str, number: signal.Signals) -> int:
    """Report that a signal has ended the command; returns its exit status."""
    one = command_of(name)
    resumable = one is not None and one.continues
    complain("\nstopped; the same command continues." if resumable else "\ninterrupted.")
    return 0 if resumable else 128 + number


def _message_of(error: Exception) -> str | None:
    """The message of an error for the user; None for a bug, which keeps its traceback."""
    if isinstance(error, ImportError):
        return _import_message(error)
    if isinstance(error, OSError) and error.strerror:
        return _system_message(error)
    # An error of these libraries can only have been raised if they are imported.
    for module, kind in (("yaml", "YAMLError"), ("safetensors", "SafetensorError")):
        if sys.modules.get(module) and isinstance(error, getattr(sys.modules[module], kind)):
            return " ".join(str(error).split())
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and isinstance(error, distributed.DistStoreError | distributed.DistNetworkError):
        rank, reason = os.environ.get("RANK", "0"), " ".join(str(error).split())
        if os.environ.get("WORLD_SIZE", "1") == "1" and "MASTER_PORT" in os.environ:
            port = os.environ["MASTER_PORT"]
            return f"port {port} (MASTER_PORT) is taken: {reason} Set another one, or none."
        return f"rank {rank} has not found the other ranks of the job: {reason} Start it again."
    return str(error) if isinstance(error, ValueError | OSError | TrainingError) else None


def _system_message(error: OSError) -> str:
    """What the system refused, for which file, and the remedy if one is known."""
    helps = {
        errno.EACCES: "choose a place that you may write to",
        errno.EEXIST: "a file is in the place of a folder",
        errno.EISDIR: "name a file, not a folder",
        errno.ENOSPC: "free some space; what is saved stays, and the same command goes on",
        errno.ENOTDIR: "a part of this path is a file, not a folder",
        errno.EROFS: "choose a place that you may write to",
    }
    where = f"{os.fspath(error.filename)!s}: " if error.filename else ""
    what = helps.get(error.errno or 0)
    return f"{where}{error.strerror}{f' ({what})' if what else ''}."


def _import_message(error: ImportError) -> str | None:
    """What to install for an import; None for one of our own modules, whose failure is a bug."""
    module = (error.name or "").partition(".")[0]
    own = {one.module.partition(".")[0] for one in registry.added_commands().values()}
    if module in {"trustclip", *own}:
        return None
    if not isinstance(error, ModuleNotFoundError) or not module:
        return str(error)
    return f"the package {module} is not installed: pip install {registry.extra(module) or module}."


def _silence_warnings() -> None:
    """Hide deprecation and advisory notices of libraries from the user's terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    # TRL warns at each of its imports of vLLM.
    warnings.filterwarnings("once", "TRL currently supports vLLM versions", UserWarning)
    # A user needs the text of a warning, not the source line that it comes from.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {harmless(str(message))}\n"


if __name__ == "__main__":
    command()
