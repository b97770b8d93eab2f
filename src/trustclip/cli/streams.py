"""Standard streams that may be full, closed, without a reader, or limited to ASCII."""

import codecs
import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

#: Name of `_closest` among Python's ways to treat characters that an encoding lacks.
_CLOSEST = "trustclip.closest"
#: Characters of what the commands print, in ASCII; the others are decomposed, or "?".
ASCII = str.maketrans(
    dict.fromkeys("\u2212\u2013\u2014\u2500", "-")
    | dict.fromkeys("\u2018\u2019", "'") | dict.fromkeys("\u201c\u201d", '"')
    | {"\u00b1": "+-", "\u2192": "->", "\u2190": "<-", "\u00b7": "*", "\u00d7": "x", "\u2264": "<=",
       "\u2265": ">=", "\u03b5": "epsilon", "\u03b4": "delta", "\u2207": "grad"}
)  # fmt: skip


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
    """Where the encoding is not Unicode, write what comes closest to each character."""
    codecs.register_error(_CLOSEST, _closest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_CLOSEST)


def _closest(error: UnicodeError) -> tuple[str, int]:
    """Replacement for characters that an encoding lacks.

    Example:
      >>> _closest(UnicodeEncodeError("ascii", "a \u2212 \u00b1\u00e9 \u03b4 \u6c49", 0, 10, ""))[0]
      'a - +-e delta ?'
    """
    assert isinstance(error, UnicodeEncodeError)
    text = unicodedata.normalize("NFKD", error.object[error.start : error.end].translate(ASCII))
    plain = "".join(one for one in text if not unicodedata.combining(one))
    return plain.encode("ascii", "replace").decode(), error.end
