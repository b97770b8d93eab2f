"""A verifier whose processes are killed, stopped and starved, and that is forked while it works.

From the seed: its size and limits, batches of answers of which the verdicts are known, some of them
meant to hang or to eat memory, asked by one thread or two, while another one disturbs. No answer
may ever be scored as right that is wrong; one that is right may be missed only in a batch that was
disturbed, or in the next one, where a stopped host is noticed; then all are right again. A forked
copy judges rightly by processes of its own, and nothing is left when the verifier is closed.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from patience import slowness

from trustclip.train.problems.verify import Verifier

from .runs import LostError, played

Pair = tuple[str, str]

RIGHT: tuple[Pair, ...] = (
    ("\\frac{1}{2}", "0.5"), ("2\\sqrt{3}", "\\sqrt{12}"), ("x^2+2x+1", "(x+1)^2"), ("7", "7"),
    ("\\frac{9}{7}", "\\frac{18}{14}"), ("5\\pi", "\\pi \\cdot 5"), ("120", "5!"),
)  # fmt: skip
WRONG: tuple[Pair, ...] = (
    ("\\frac{1}{2}", "0.25"), ("2\\sqrt{3}", "\\sqrt{13}"), ("x^2+2x+1", "(x+2)^2"), ("7", "8"),
    ("\\frac{9}{7}", "\\frac{18}{13}"), ("5\\pi", "\\pi \\cdot 6"), ("120", "6!"),
)  # fmt: skip
#: What passes every filter of syntax, and runs for ever or takes all memory.
HOSTILE: tuple[Pair, ...] = (
    ("2", "((((9^{990})^{999})^{999})^{999})^{999}"), ("7", "((9^{991})^{999})^{999}"),
    ("0", "(x+y+z+w+1)^{99}-1"), ("\\frac{1}{2}", "(a+b+c+d+f+g)^{77}"),
)  # fmt: skip


def _processes() -> list[psutil.Process]:
    """Hosts and judges of this process."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process().children(recursive=True)
        return [child for child in found if "worker.py" in " ".join(_command(child))]
    return []


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _send(processes: Sequence[psutil.Process], *numbers: signal.Signals) -> None:
    for process in processes:
        for number in numbers:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def kill(dice: random.Random, _: Verifier) -> None:
    """One process, host or judge."""
    _send(_chosen(dice), signal.SIGKILL)


def kill_all(_: random.Random, __: Verifier) -> None:
    """Every process at once, as a machine out of memory may."""
    _send(_processes(), signal.SIGKILL)


def stop(dice: random.Random, _: Verifier) -> None:
    """One process, for good."""
    _send(_chosen(dice), signal.SIGSTOP)


def stop_and_go(dice: random.Random, _: Verifier) -> None:
    """One process, which goes on after a while."""
    chosen = _chosen(dice)
    _send(chosen, signal.SIGSTOP)
    time.sleep(dice.uniform(0, 0.5))
    _send(chosen, signal.SIGCONT)


def fork(_: random.Random, __: Verifier) -> None:
    """A forked child, such as a data loader's worker, that comes and goes."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def fork_and_use(dice: random.Random, verifier: Verifier) -> None:
    """A forked child that judges with its copy of the verifier, right and wrong."""
    (right, other), (wrong, unlike) = dice.choice(RIGHT), dice.choice(WRONG)
    child = os.fork()
    if child == 0:
        fine = False
        with contextlib.suppress(BaseException):
            verifier._timeout = 100.0
            answers = [rf"\boxed{{{answer}}}" for answer in (other, unlike)]
            fine = verifier.score([right, wrong], answers) == [1.0, 0.0]
            verifier.close()
        os._exit(0 if fine else 1)
    end = time.monotonic() + 120 * slowness()
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise LostError("a forked copy hangs")
        time.sleep(0.02)
    if done[1]:
        raise LostError(f"a forked copy misjudged {other!r} or {unlike!r}")


def _chosen(dice: random.Random) -> list[psutil.Process]:
    there = _processes()
    return [dice.choice(there)] if there else []


DISTURBANCES: tuple[Callable[[random.Random, Verifier], None], ...] = (
    kill, kill, kill_all, stop, stop, stop_and_go, fork, fork_and_use,
)  # fmt: skip


class Verifiers:
    """Verifiers under disturbance."""

    operations = 0

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def play(self, seed: int) -> list[str]:
        """One verifier: two disturbed batches, and two quiet ones after each."""
        dice = random.Random(seed)
        verifier = Verifier(
            workers=dice.choice((1, 2, 3)),
            timeout=slowness(),
            recycle_after=dice.choice((1, 3, 50)),
            memory_limit=dice.choice((3 << 29, 2 << 30)),
        )
        try:
            for _ in range(2):
                self._disturbed(verifier, dice)
                # A stopped host is noticed when it is asked: one answer of each may be lost.
                self._batch(verifier, dice, (RIGHT, WRONG), missing=True)
                self._batch(verifier, dice, (RIGHT, WRONG), missing=False)
        finally:
            verifier.close()
        left = _processes()
        _send(left, signal.SIGKILL)
        if left:
            raise LostError(f"{len(left)} processes are left")
        self.counts.update({f"judged: {name}": n for name, n in verifier.counts.items()})
        return []

    def _disturbed(self, verifier: Verifier, dice: random.Random) -> None:
        """A batch, or two at once, and up to three disturbances."""
        asking = dice.choice((1, 1, 2))
        seeds = [dice.random() for _ in range(asking)]
        with ThreadPoolExecutor(asking) as threads:
            batches = [
                threads.submit(
                    self._batch, verifier, random.Random(s), (RIGHT, WRONG, HOSTILE), missing=True
                )
                for s in seeds
            ]
            for _ in range(dice.choice((1, 2, 3))):
                time.sleep(dice.uniform(0, 0.6) * verifier._timeout)
                disturbance = dice.choice(DISTURBANCES)
                disturbance(dice, verifier)
                self.counts[f"disturbances: {disturbance.__name__}"] += 1
            for batch in batches:
                batch.result()

    def _batch(
        self, verifier: Verifier, dice: random.Random, kinds: Sequence[Any], *, missing: bool
    ) -> None:
        """Ask for eight answers; `missing`: whether a right one may be missed."""
        asked = [(kind, dice.choice(kind)) for kind in dice.choices(kinds, k=8)]
        golds = [gold for _, (gold, _) in asked]
        scores = verifier.score(golds, [f"\\boxed{{{answer}}}" for _, (_, answer) in asked])
        for (kind, (gold, answer)), score in zip(asked, scores, strict=True):
            self.counts["answers"] += 1
            if kind is not RIGHT and score:
                raise LostError(f"{answer[:40]!r} was scored as {gold!r}")
            if kind is RIGHT and not (score or missing):
                raise LostError(f"{answer!r} was not accepted for {gold!r}, undisturbed")


def campaign(seeds: Iterable[int]) -> dict[str, Any]:
    """Play every seed; see `faults.runs.campaign`."""
    return played(seeds, Verifiers())
