"""The process that runs math-verify on untrusted text written by a model.

Started by `trustclip.train.problems.verify.pool` as a plain script, so that neither the user's main
module nor trustclip (and with it torch) is imported here: a host that imports math-verify once and
forks a *judge* from that warm state. The judge does the algebra; the host only waits, kills the
judge with SIGKILL when it overruns, and forks another within milliseconds. One JSON object per line
in, one per line out; end of input ends the host, and a judge never outlives the CPU seconds of its
task.
"""

import contextlib
import ctypes
import json
import logging
import os
import re
import resource
import select
import signal
import sys
import time
from functools import lru_cache
from typing import Any, BinaryIO

RIGHT, WRONG, ERROR, UNREADABLE_GOLD = b"1", b"0", b"e", b"g"
REPLIES = {RIGHT: "right", WRONG: "wrong", ERROR: "error", UNREADABLE_GOLD: "unreadable_gold"}
#: ``4.5e33``; LaTeX would read the e as Euler's number.
_SCIENTIFIC = re.compile(r"(?<![\w.\\^])(?<!\^\{)(\d+\.?\d*|\.\d+)[eE]\+?(-?\d{1,3})(?![\w.])")


def _has_delimiters(text: str) -> bool:
    bare = text.replace("\\$", "")
    return any(mark in bare for mark in ("$", "\\boxed", "\\(", "\\["))


def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    bare = not _has_delimiters(text)
    if bare:
        text = f"\\boxed{{{text}}}"
    text = _SCIENTIFIC.sub(r"\1\\times10^{\2}", text)
    text = text.replace("\\bmod", "\\mod")  # the only spelling that its grammar knows
    # Any match would be the first fraction or number found in text that does not parse.
    return parse(
        text,
        [LatexExtractionConfig(boxed_match_priority=0)],
        extraction_mode="first_match" if bare else "any_match",
        parsing_timeout=None,  # type: ignore[arg-type]
    )


_parse_gold = lru_cache(maxsize=4096)(_parse)


def judge(task: dict[str, Any]) -> bytes:
    """Verdict of math-verify on one task: {"gold", "answer"}."""
    from math_verify import verify

    gold = _parse_gold(task["gold"])
    if not gold:
        return UNREADABLE_GOLD
    answer = _parse(task["answer"])
    if not verify(gold, answer, timeout_seconds=None):
        return WRONG
    return WRONG if _is_rounded(gold[0], answer[0]) else RIGHT


def _is_rounded(gold: Any, answer: Any) -> bool:
    """Whether an answer in decimals rounds an irrational gold, which math-verify lets pass."""
    from sympy import Eq, Expr, Float, nsimplify, simplify

    gold, answer = (side.rhs if isinstance(side, Eq) else side for side in (gold, answer))
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    if not gold.is_number or gold.has(Float) or not answer.has(Float):
        return False
    exact, value = simplify(gold), simplify(nsimplify(answer, rational=True))
    return exact.is_rational is not True and value.is_rational is True and not exact.equals(value)


def _judge_forever(requests: BinaryIO, replies: int) -> None:
    for line in requests:
        try:
            task = json.loads(line)
            _limit_cpu(task["timeout"])
            reply = judge(task)
        except BaseException:  # math-verify's own timeout is no Exception; MemoryError, recursion
            reply = ERROR
        os.write(replies, reply)


class Judge:
    """A forked child that judges tasks, one at a time, until it is killed."""

    def __init__(self) -> None:
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        host = os.getpid()
        self.pid = os.fork()
        self.tasks = 0
        if self.pid == 0:
            try:
                _end_with_parent(host)
                for fd in (0, self._requests, self._replies):
                    os.close(fd)
                _judge_forever(os.fdopen(request_read, "rb"), reply_write)
            finally:
                os._exit(0)
        os.close(request_read)
        os.close(reply_write)

    def ask(self, line: bytes, timeout: float) -> str:
        """The verdict on one request line; "timeout" or "crash" if there is none."""
        self.tasks += 1
        deadline = time.monotonic() + timeout
        try:
            os.write(self._requests, line)
        except BrokenPipeError:
            return "crash"
        # Standard input has nothing to read while a task is under way, unless it has ended.
        sources = [self._replies, 0]
        ready, _, _ = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))
        if self._replies not in ready:
            return "crash" if ready else "timeout"
        return REPLIES.get(os.read(self._replies, 1), "crash")

    def kill(self) -> None:
        """End the child, whatever it is doing, and release what it held."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._requests)
        os.close(self._replies)


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; only Linux can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before
        os._exit(0)


def _warm_up() -> None:
    # The first use of each corner of the algebra costs up to a second; forked judges inherit it.
    for gold, answer in (
        (r"\frac{1}{2}", "0.5"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"2\sqrt{3}", r"\sqrt{12}+1"),
        (r"5\pi", r"\sin(x)"),
        (r"\{1,2\}", "(1,2]"),
        ("(1,2)", r"\begin{pmatrix}1 \\ 2\end{pmatrix}"),
        ("x=3", r"x \geq 3"),
        ("2^{10}", r"\binom{5}{2}+5!"),
    ):
        judge({"gold": gold, "answer": answer})


def _limit_cpu(seconds: float) -> None:
    # The kernel's own limit, in case the host that should kill this process is gone.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(sum(os.times()[:2]) + seconds) + 2
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit_memory(limit: int) -> None:
    # macOS refuses; the time limit still holds there.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(memory_limit: int, recycle_after: int) -> None:
    """Serve requests from standard input until it ends."""
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # antlr prints what it cannot read: not into the protocol
    logging.disable(logging.CRITICAL)
    _limit_memory(memory_limit)
    try:
        _warm_up()
    except Exception as error:
        os.write(output, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return
    os.write(output, b'{"ready": true}\n')
    current: Judge | None = None
    try:
        for line in sys.stdin.buffer:
            current = current or Judge()
            verdict = current.ask(line, json.loads(line)["timeout"])
            os.write(output, json.dumps({"verdict": verdict}).encode() + b"\n")
            if verdict in ("timeout", "crash") or current.tasks >= recycle_after:
                current.kill()
                current = None
    except BrokenPipeError:
        pass  # the parent process has gone
    finally:
        if current:
            current.kill()


if __name__ == "__main__":
    main(memory_limit=int(sys.argv[1]), recycle_after=int(sys.argv[2]))
