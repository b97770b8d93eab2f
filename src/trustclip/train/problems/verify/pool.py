"""Worker processes for algebra on untrusted text: bounded in time and memory, always replaced."""

import contextlib
import importlib.util
import json
import logging
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Seconds. A host answers at the task's own limit; these only catch a host that is itself stuck.
STARTUP_LIMIT = 120.0
HOST_GRACE = 5.0
# A machine out of memory or processes for a moment must not end a training.
START_ATTEMPTS = 2

_logger = logging.getLogger(__name__)


class NotStartedError(RuntimeError):
    """A host process ended, or stayed silent, before it was ready."""


class Worker:
    """One host process (`trustclip.train.problems.verify.worker`), started on its first task."""

    def __init__(self, memory_limit: int, recycle_after: int) -> None:
        self._arguments = [str(memory_limit), str(recycle_after)]
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, task: dict[str, Any]) -> str:
        """Verdict on one task: "right", "wrong", "timeout", "crash", "error", "unreadable_gold"."""
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            process = self._start()
        try:
            _stream(process.stdin).write(json.dumps(task).encode() + b"\n")
            reply = _read_line(process, task["timeout"] + HOST_GRACE)
        except BrokenPipeError:
            reply = {}
        if reply is None or "verdict" not in reply:
            self.kill()
            return "timeout" if reply is None else "crash"
        return reply["verdict"]

    def forget(self) -> None:
        """Close a forked copy's ends of the pipes: the host is the parent's, and ends with it."""
        process, self._process = self._process, None
        if process is not None:
            _stream(process.stdin).close()
            _stream(process.stdout).close()
            process.returncode = 0  # not our child: nothing to wait for

    def signal(self) -> None:
        """Send SIGKILL to the host and its judge, if this process started them."""
        process = self._process
        if process is not None and process.returncode is None and self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the host and its judge at once and release what they held."""
        self.signal()
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.wait()
            _stream(process.stdin).close()
            _stream(process.stdout).close()

    def _start(self) -> subprocess.Popen[bytes]:
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError(
                "answers that are not integers are judged by math-verify, which is not installed: "
                "pip install 'trustclip[train]'"
            )
        self.kill()
        script = Path(__file__).with_name("worker.py")
        self._owner = os.getpid()  # a forked copy of this object starts a host of its own
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", str(script), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the trainer alone, killpg both
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            hello = _read_line(process, STARTUP_LIMIT)
        except OSError as error:
            self.kill()
            raise NotStartedError(str(error)) from error
        if hello and "error" in hello:  # math-verify itself is broken, and will be next time
            self.kill()
            raise RuntimeError(f"the verification worker did not start: {hello['error']}")
        if not hello:
            self.kill()
            raise NotStartedError("no reply")
        return process


class WorkerPool:
    """Answers many tasks on a fixed number of workers; safe to use from several threads."""

    def __init__(self, workers: int, memory_limit: int, recycle_after: int) -> None:
        self._size = workers
        self._limits = memory_limit, recycle_after
        self._open()
        _pools.add(self)

    def _open(self) -> None:
        self.lock = threading.Lock()
        self._workers = [Worker(*self._limits) for _ in range(self._size)]
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed = threading.Event()
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def after_fork(self) -> None:
        """Start anew in a forked child: a thread of the parent may have held a worker or a lock."""
        closed, workers = self._closed.is_set(), self._workers
        self._finalizer.detach()
        for worker in workers:
            worker.forget()
        self._open()
        if closed:
            self._closed.set()

    def ask(self, tasks: Sequence[dict[str, Any]]) -> list[str]:
        """One verdict per task, in order."""
        if len(tasks) <= 1 or self._size == 1:
            return [self._ask_one(task) for task in tasks]
        threads = ThreadPoolExecutor(min(self._size, len(tasks)))
        try:
            return list(threads.map(self._ask_one, tasks))
        finally:
            threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Kill the workers; a task under way in another thread comes back as "crash"."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._finalizer.detach()
        for worker in self._workers:
            worker.signal()
        for worker in [self._idle.get() for _ in self._workers]:
            worker.kill()
            self._idle.put(worker)

    def _ask_one(self, task: dict[str, Any]) -> str:
        worker = self._idle.get()
        try:
            if self._closed.is_set():
                raise ValueError("this verifier is closed")
            return self._ask_worker(worker, task)
        except BaseException:
            worker.kill()  # an interrupted exchange would leave its reply for the next task
            raise
        finally:
            self._idle.put(worker)

    def _ask_worker(self, worker: Worker, task: dict[str, Any]) -> str:
        """The worker's verdict, or "timeout" where it cannot be started."""
        reason = ""
        for _ in range(START_ATTEMPTS):
            try:
                return worker.ask(task)
            except NotStartedError as error:
                if self._closed.is_set():
                    return "crash"
                reason = str(error)
        text = "a verification worker did not start (%s, tried %d times): its answer scores 0"
        _logger.warning(text, reason, START_ATTEMPTS)
        return "timeout"


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _kill_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()


def _read_line(process: subprocess.Popen[bytes], timeout: float) -> dict[str, Any] | None:
    """The next reply; {} if the host is gone; None if nothing came within `timeout` seconds."""
    stream = _stream(process.stdout)
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        if not selector.select(timeout):
            return None
    # A reply is one short write, so a single read returns it whole.
    line = os.read(stream.fileno(), 65_536)
    return json.loads(line) if line else {}


def _stream(stream: Any) -> Any:
    assert stream is not None
    return stream
