"""Runs that meet faults, are started again, and must end as if nothing had happened.

After every process that has ended before its time, three things are checked: the newest checkpoint
loads, it is not older than the last one that the process knew to be saved, and what the next
processes add makes the files, byte for byte, of a run that nothing disturbed. A process that has
ended well is also followed by a power cut: what it said is done must still be there.
"""

import json
import random
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from trustclip.durable.store import CheckpointStore, TrainingError

from . import standin
from .disk import Disk
from .plans import Faults, draw
from .world import Dead, Plan, World

#: Processes after which a run has to be finished: each fault ends one.
PATIENCE = 12
#: What depends on the clock.
CLOCK = {
    "seconds", "cpu_seconds", "step_time", "_current_train_step_time", "train_runtime",
    "train_samples_per_second", "train_steps_per_second",
}  # fmt: skip

_SHARD = re.compile(r"samples(-\d+)?\.jsonl")

#: Trains in a folder; True when the run is finished, False when it was asked to stop.
Work = Callable[[Path], bool]


class LostError(AssertionError):
    """Something that was there is gone, or is not what it should be."""


def outcome(folder: Path) -> dict[str, bytes]:
    """Content of every file of a finished run, but for the clock and what names its process."""
    found = {}
    for path in sorted(folder.rglob("*"), key=lambda path: (path.parent, path.stem)):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name in ("lock", "checkpoints/start.json"):
            continue
        if path.name == "manifest.json":  # it holds the random name of the run
            continue
        if name.startswith("checkpoints/."):  # hidden remains, which the next process removes
            continue
        content = path.read_bytes()
        if path.name == "shared.json":  # the hash of rows with clock times
            values = json.loads(content)
            values["cursor"].pop("metrics.jsonl", None)
            content = json.dumps(values).encode()
        elif any(word.encode() in content for word in CLOCK):
            values = [timeless(json.loads(line)) for line in _lines(path, content)]
            content = json.dumps(values).encode()
        if _SHARD.fullmatch(name):  # where one ends may differ
            name, content = "samples", found.get("samples", b"") + content
        found[name] = content
    return found


def _lines(path: Path, content: bytes) -> list[bytes]:
    return content.splitlines() if path.suffix == ".jsonl" else [content]


def timeless(value: Any) -> Any:
    """Nested values without what depends on the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCK}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def difference(found: dict[str, bytes], whole: dict[str, bytes], run: Path) -> str:
    """The first file that is not as in the undisturbed run; nothing when all are."""
    kept = {f"checkpoints/{p.name}" for p in (run / "checkpoints").glob("step-*")}
    for name in sorted(found | whole):
        parent = "/".join(name.split("/")[:2])
        if parent.startswith("checkpoints/step-") and name not in whole and parent in kept:
            continue  # one of another update, after a signal; the common ones are compared
        if parent.startswith("checkpoints/step-") and parent not in kept:
            continue
        if found.get(name) != whole.get(name):
            what = "missing" if name not in found else "there" if name not in whole else "different"
            return f"{name} is {what}"
    return ""


class Runs:
    """Schedules of faults on one kind of run.

    Args:
      work: the run.
      base: a folder for it.
      foreign: whether libraries in other languages write some of the files.
    """

    def __init__(self, work: Work, base: Path, *, foreign: bool = False) -> None:
        self._work, self._root, self._foreign = work, base / "disk", foreign
        self._run = self._root / "run"
        self.counts: Counter[str] = Counter()
        disk, plan = self._new(), Plan()
        with as_a_process(), World(disk, plan):
            assert work(self._run)
        self.operations = plan.count
        self._whole = outcome(self._run)

    def _new(self) -> Disk:
        emptied(self._root)
        return Disk(self._root)

    def play(self, seed: int) -> list[str]:
        """Let the faults of a seed happen.

        Returns:
          What happened, a line for each process.

        Raises:
          LostError: something was lost, or differs.
        """
        dice = random.Random(seed)
        disk, faults, story = self._new(), draw(dice, self.operations), list[str]()
        for number in range(PATIENCE):
            fault = faults[number] if number < len(faults) else None
            plan, saved = Faults(fault, dice), list[int]()
            finished = self._process(disk, plan, saved, story)
            if fault is not None and (plan.powerless or dice.random() < 0.2):
                story.append("the power is cut")
                if self._foreign:
                    disk.adopt()
                disk.cut_power(dice)
                self.counts["power cuts"] += 1
            self.counts["processes"] += 1
            self.counts[f"fault: {fault.kind}" if plan.happened and fault else "undisturbed"] += 1
            self._check(saved, story)
            if finished and number >= len(faults):
                if wrong := difference(outcome(self._run), self._whole, self._run):
                    raise LostError(f"{wrong} after: {'; '.join(story)}")
                return story
        raise LostError(f"not finished after {PATIENCE} processes: {'; '.join(story)}")

    def _process(self, disk: Disk, plan: Faults, saved: list[int], story: list[str]) -> bool:
        """One process; whether the run is finished when it ends."""
        try:
            with as_a_process(), World(disk, plan), _noted(saved):
                finished = self._work(self._run)
            end = "finished" if finished else "stopped and saved"
        except Dead:
            finished, end = False, "dead"
        except (OSError, ValueError, MemoryError, TrainingError) as error:
            if not plan.happened:
                raise LostError(f"refused: {error} after: {'; '.join(story)}") from error
            finished, end = False, f"ended with {error!r}"[:300]
        except (KeyboardInterrupt, SystemExit) as error:
            finished, end = False, f"left by {error!r}"
        except BaseException as error:
            raise LostError(f"{error!r} in a process after: {'; '.join(story)}") from error
        plan.dead = plan.dead or not finished
        story.append(f"{plan.happened or 'nothing'}: {end}")
        return finished

    def _check(self, saved: list[int], story: list[str]) -> None:
        """The newest checkpoint loads, and is not older than what was saved."""
        store = CheckpointStore(self._run / "checkpoints")
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                newest = store.newest()
            except OSError as error:
                raise LostError(f"{error} after: {'; '.join(story)}") from error
        step = int(newest.name[5:]) if newest else 0
        if store.damaged:
            self.counts["damaged checkpoints passed over"] += 1
        if saved and step < max(saved):
            raise LostError(f"step {max(saved)} was saved, {step} is left: {'; '.join(story)}")
        self.counts["checkpoints checked"] += newest is not None


@contextmanager
def _noted(saved: list[int]):
    """Note the step of every checkpoint once it is committed."""
    commit = CheckpointStore.commit

    def committed(store: CheckpointStore, step: int, *rest: Any) -> Path:
        path = commit(store, step, *rest)
        saved.append(step)
        return path

    with mock.patch.object(CheckpointStore, "commit", committed):
        yield


@contextmanager
def as_a_process():
    """Signals end this code as they end the command line; what it prints is of no interest."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # files of dead processes, when they are collected
    try:
        with redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def emptied(folder: Path) -> None:
    """Make a folder, or empty the one that is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


@contextmanager
def memory_folder():
    """A temporary folder in memory, where the system has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def stand_in(base: Path) -> Runs:
    """Runs of `faults.standin`."""
    return Runs(standin.work, base)


def campaign(seeds: Iterable[int], make: Callable[[Path], Runs] = stand_in) -> dict[str, Any]:
    """Play every seed; counts of what happened, and the seeds that failed with their stories."""
    with memory_folder() as base:
        return played(seeds, make(base))


def played(seeds: Iterable[int], player: Any) -> dict[str, Any]:
    """As `campaign`, for anything with ``play``, ``counts`` and ``operations``."""
    failures, schedules = {}, 0
    for seed in seeds:
        schedules += 1
        try:
            player.play(seed)
        except LostError as error:
            failures[seed] = str(error)
    counts = {"schedules": schedules, "operations of one process": player.operations}
    return {**counts, **dict(sorted(player.counts.items())), "failures": failures}
