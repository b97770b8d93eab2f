"""Requests to stop: the signals by which a terminal, a job manager or a person asks for one."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: Seconds in which signals of one kind are one request: GNU timeout and torchrun signal a process
#: that has had the signal already, as one of its group.
TOGETHER = 1.0


Action = Callable[[int, FrameType | None], None]


class Requests:
    """Handler of the signals that ask to stop; those of one kind within `TOGETHER` seconds are one.

    The next requests do what is in ``once``, last first; all others what is in ``base``.

    Example:
      >>> requests = Requests()
      >>> requests.once.append(lambda number, frame: print("stopping"))
      >>> for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
      ...     requests(number)
      stopping
      >>> requests.count
      2
    """

    def __init__(self, base: Action = lambda *_: None) -> None:
        self.count = 0
        self.once: list[Action] = []
        self._base = base
        self._counted: dict[int, float] = {}

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        now = time.monotonic()
        if now - self._counted.get(number, -math.inf) < TOGETHER:
            return
        self._counted[number] = now
        self.count += 1
        (self.once.pop() if self.once else self._base)(number, frame)


def listen(requests: Requests) -> dict[int, Any]:
    """Make it the handler of SIGTERM and SIGINT, in the main thread; returns those before.

    SIGINT is heard even where it was ignored, as in background jobs of shells without job control,
    which ignore it because a Ctrl-C is meant for the foreground: whoever sends it to this process
    means it, and nothing is lost by it. SIGHUP is left alone: nohup is a request, too.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, requests) for number in (signal.SIGTERM, signal.SIGINT)}


def unlisten(before: dict[int, Any]) -> None:
    """Put back the handlers that `listen` returned."""
    for number, handler in before.items():
        signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def on_request(action: Callable[[], None]) -> Iterator[None]:
    """Call a function on the next SIGTERM or Ctrl-C; one after that does what it did before.

    Only the main thread can listen.
    """

    def act(*_: Any) -> None:
        action()

    before: dict[int, Any] = {}
    requests = signal.getsignal(signal.SIGTERM)
    if not isinstance(requests, Requests):
        requests = Requests(lambda number, frame: _call_previous(before[number], number, frame))
        before |= listen(requests)
    requests.once.append(act)
    try:
        yield
    finally:
        if act in requests.once:
            requests.once.remove(act)
        unlisten(before)


def _call_previous(handler: Any, number: int, frame: FrameType | None) -> None:
    if callable(handler):
        handler(number, frame)
    elif number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    elif handler != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def say_at_once(text: str) -> None:
    """Write a line to standard error from a signal's handler, whatever that has interrupted."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        try:
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()
        except RuntimeError:  # a write to the same stream, which cannot be entered twice
            os.write(2, f"\n{text}\n".encode())
