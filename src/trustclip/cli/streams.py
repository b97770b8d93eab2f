"""Standard streams that may be full, closed, without a reader, or limited to ASCII."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any


class Tolerant:
    """A stream whose failure does not end the run: what a run prints is no record of it.

    After the first failure, as on a full disk or when its reader has left, the rest of the output
    is discarded, with a warning on standard error.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., Any], *values: Any) -> None:
        try:
            action(*values)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            discard_output()
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            reason = getattr(error, "strerror", None) or error
            complain(f"warning: the output cannot be written ({reason}); the run goes on.")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def complain(text: str) -> None:
    """Print to standard error, if anybody reads it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def discard_output() -> None:
    """Discard the rest of the output: Python would report at exit that it cannot be flushed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def occupy_closed() -> None:
    """Open the null device in place of a closed stream: a file of the run would take its number.

    Whatever a library in C prints would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def write_readably() -> None:
    """Where the encoding is not Unicode, write a question mark for what it lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")
