"""Runs that meet faults, are started again, and must end as if nothing had happened.

How a run is set up, what goes wrong in its processes, and what people do to it in between, is drawn
from the seed. After every process, the last one too, the power is cut, and what is left is compared
at once, before any other process could mend it: the newest checkpoint loads, is not older than the
last one that the process knew to be saved, holds what an undisturbed run held at that update, and
the rows before it are there; and of a process that called the run
finished, every file is, byte for byte, that of a run that nothing disturbed. Then the next process
goes on from there, or from the same disk as if its power had not been cut.
"""

import copy
import hashlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from trustclip.logs.writing import run as writing
from trustclip.support.jsonl import read_jsonl
from trustclip.support.names import TrainingError
from trustclip.train.durable import store as stores_of_checkpoints
from trustclip.train.durable.saving import Saver
from trustclip.train.durable.store import CheckpointStore

from . import standin
from .disk import Disk
from .plans import Fault, Faults, draw
from .setups import ACTS, OUTSIDE, REFERENCE, Draw, Hand, Setup, any_setup, draw_hand
from .turns import PeerLostError, Turns
from .world import Dead, Plan, World

#: Processes after which a run has to be finished: each fault ends one.
PATIENCE = 12
#: What depends on the clock, itself or as a hash of it.
CLOCK = {
    "hashes",
    "seconds", "cpu_seconds", "step_time", "_current_train_step_time", "train_runtime",
    "train_samples_per_second", "train_steps_per_second",
}  # fmt: skip


#: Trains in a folder; True when the run is finished, False when it was asked to stop.
Work = Callable[[Path, Setup], bool]


class LostError(AssertionError):
    """Something that was there is gone, or is not what it should be."""


def outcome(folder: Path) -> dict[str, bytes]:
    """Content of every file of a finished run, but for the clock and what names its process."""
    found = {}
    for path in sorted(folder.rglob("*"), key=lambda path: (path.parent, path.stem)):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or name in ("lock", "checkpoints/start.json"):
            continue
        if path.name == "manifest.json":  # it holds the random name of the run
            continue
        if name.startswith(("checkpoints/.", "attempt-")) or name.endswith(".aside"):
            continue  # removed or set aside by the next process
        content = path.read_bytes()
        if path.name in ("shared.json", "state.json"):  # the hash of rows with clock times
            values = json.loads(content)
            values["cursor"].pop("metrics.jsonl", None)
            content = json.dumps(values).encode()
        elif path.name == "README.md":  # the model card, with the run's duration
            content = re.sub(rb"(?m)^\| time \|.*$", b"", content)
        elif any(word.encode() in content for word in CLOCK):
            with suppress(ValueError):  # damaged
                values = [timeless(json.loads(line)) for line in _lines(path, content)]
                content = json.dumps(values).encode()
        found[name] = content
    return found


def _lines(path: Path, content: bytes) -> list[bytes]:
    return content.splitlines() if path.suffix == ".jsonl" else [content]


def timeless(value: Any) -> Any:
    """Nested values without what depends on the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCK}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def difference(found: dict[str, bytes], whole: dict[str, bytes], *, only: str = "") -> str:
    """The first file that is not as in the undisturbed run; nothing when all are.

    Args:
      found: of the run.
      whole: of the undisturbed one, with a checkpoint of every update: which are kept is checked
        when they are written.
      only: beginning of the names that are compared.
    """
    kept = {name.split("/")[1] for name in found if name.startswith("checkpoints/step-")}
    for name in sorted(found | whole):
        folder, _, rest = name.partition("/")
        if folder == "checkpoints" and rest.partition("/")[0] not in kept:
            continue
        if name.startswith(only) and found.get(name) != whole.get(name):
            what = "missing" if name not in found else "there" if name not in whole else "different"
            return f"{name} is {what}"
    return ""


@dataclass
class Game:
    """One schedule that is being played.

    Args:
      disk: as it is.
      dice: of the seed.
      setup: of the run.
      whole: files of the undisturbed run.
    """

    disk: Disk
    dice: random.Random
    setup: Setup
    whole: dict[str, bytes]
    story: list[str] = field(default_factory=list)
    last: list[int] = field(default_factory=list)  # steps that the last process knew to be saved

    def lost(self, what: str) -> "LostError":
        return LostError(f"{what} after: {'; '.join([str(self.setup), *self.story])}")


class Runs:
    """Schedules of faults on one kind of run.

    Args:
      work: the run.
      base: a folder for it.
      setups: draws how it is set up; None for always the same.
      other: a command that must be refused once the run has begun; None where no people come.
      foreign: whether libraries in other languages write some of the files.
    """

    def __init__(
        self,
        work: Work,
        base: Path,
        setups: Draw | None = None,
        other: Work | None = None,
        *,
        foreign: bool = False,
    ) -> None:
        self._work, self._setups, self._other, self._foreign = work, setups, other, foreign
        self._root, self._outside = base / "disk", base / "outside"
        self._run = self._root / "run"
        self.counts: Counter[str] = Counter()
        self._wholes: dict[int, dict[str, bytes]] = {}
        self._operations: dict[Setup, int] = {}
        self.operations = self._known(Setup())

    def _known(self, setup: Setup) -> int:
        """Number of operations of a process of a setup, which must end as the reference does."""
        if setup.ranks not in self._wholes:
            self._wholes[setup.ranks] = {}
            self._undisturbed(REFERENCE._replace(ranks=setup.ranks))
            self._wholes[setup.ranks] = outcome(self._run)
        if setup not in self._operations:
            self._operations[setup] = self._undisturbed(setup)
        return self._operations[setup]

    def _undisturbed(self, setup: Setup) -> int:
        game, plan = self._new(random.Random(str(setup)), setup), Plan()
        with self._inside(game, plan):
            assert Turns(setup.ranks, game.dice, plan).run(lambda: self._work(self._run, setup))
        if game.whole and (wrong := difference(outcome(self._run), game.whole)):
            raise game.lost(f"{wrong}, undisturbed")
        return plan.count

    def _new(self, dice: random.Random, setup: Setup) -> Game:
        for folder in (self._root, self._outside / "folder"):
            emptied(folder)
        for name, content in OUTSIDE.items():
            (self._outside / name).write_bytes(content)
        return Game(Disk(self._root), dice, setup, self._wholes[setup.ranks])

    def play(self, seed: int) -> list[str]:
        """Let the faults of a seed happen.

        Returns:
          What happened, a line for each process.

        Raises:
          LostError: something was lost, or differs.
        """
        dice = random.Random(seed)
        setup = self._setups(dice) if self._setups else Setup()
        faults = draw(dice, self._known(setup))
        if self._other and seed % 10 == 9:
            self._remove_rows(random.Random(f"rows of {seed}"), setup)
        hand = draw_hand(dice, len(faults)) if self._other else None
        last = max(len(faults), hand.after + 1 if hand else 0)
        game = self._new(dice, setup)
        for number in range(PATIENCE):
            fault = faults[number] if number < len(faults) else None
            finished = self._process(game, fault)
            if finished and number >= last:
                return game.story
            if hand is not None and hand.after == number:
                self._meddle(game, hand, finished=finished)
        raise game.lost(f"not finished after {PATIENCE} processes")

    def _process(self, game: Game, fault: Fault | None, *, may_refuse: bool = False) -> bool:
        """One process and the power cut behind it; whether the run is finished when it ends."""
        plan, before = Faults(fault, game.dice), files(self._run).get("metrics.jsonl")
        game.last = []
        try:
            with self._inside(game, plan):
                turns = Turns(game.setup.ranks, game.dice, plan)
                finished = turns.run(lambda: self._work(self._run, game.setup))
            end = "finished" if finished else "stopped and saved"
        except Dead:
            finished, end = False, "dead"
        except (OSError, ValueError, MemoryError, TrainingError, PeerLostError) as error:
            if not plan.happened:
                raise (RefusedError if may_refuse else game.lost)(f"refused: {error}") from error
            finished, end = False, f"ended with {error!r}"[:300]
        except (KeyboardInterrupt, SystemExit) as error:
            finished, end = False, f"left by {error!r}"
        except LostError as error:
            raise game.lost(str(error)) from error
        except BaseException as error:
            raise game.lost(f"{error!r} in a process") from error
        self.counts["processes"] += 1
        self.counts[f"fault: {fault.kind}" if plan.happened and fault else "undisturbed"] += 1
        game.story.append(f"{plan.happened or 'nothing'}: {end}")
        self._cut_power(game, plan, finished=finished)
        # One that is stopped before it trains leaves the rows that the next one cuts back.
        trained = files(self._run).get("metrics.jsonl") != before
        if end == "stopped and saved" and trained and (left := not_saved(self._run)):
            raise game.lost(left)
        return finished

    def _cut_power(self, game: Game, plan: Faults, *, finished: bool) -> None:
        """Cut the power and compare; then perhaps go on as if that had not been."""
        if self._foreign:
            game.disk.adopt()
        before = copy.deepcopy(game.disk)
        game.disk.cut_power(game.dice)
        self.counts["power cuts"] += 1
        self._check(game, finished=finished)
        if plan.powerless or game.dice.random() < 0.3:
            game.story.append("the power is cut")
        else:
            game.disk = before
            before.restore()

    def _check(self, game: Game, *, finished: bool) -> None:
        """What is left is what was there; see the module's text."""
        store = CheckpointStore(self._run / "checkpoints")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                newest = store.newest()
            except OSError as error:
                raise game.lost(str(error)) from error
        step = int(newest.name[5:]) if newest else 0
        if any("a checkpoint was skipped" in str(one.message) for one in warned):
            self.counts["damaged checkpoints passed over"] += 1
        if game.last and step < max(game.last):
            raise game.lost(f"step {max(game.last)} was saved, {step} is left")
        found = outcome(self._run) if self._run.is_dir() else {}
        if newest is not None:
            self.counts["checkpoints checked"] += 1
            only = f"checkpoints/{newest.name}/"
            wrong = difference(found, game.whole, only=only) or rows_lost(newest, self._run)
            if wrong:
                raise game.lost(f"{wrong}, of the newest checkpoint,")
        for name, content in OUTSIDE.items():
            if (self._outside / name).read_bytes() != content:
                raise game.lost(f"{name}, which is not of the run, was changed")
        if finished and (wrong := difference(found, game.whole)):
            raise game.lost(f"{wrong}, of a finished run,")

    # -- what people do ----------------------------------------------------------------------------

    def _meddle(self, game: Game, hand: Hand, *, finished: bool) -> None:
        """Let people do something between two processes, and look at the next one."""
        if hand.act == "refused":
            self._refuse(game, finished=finished)
            return
        act = ACTS[hand.act]
        if not self._run.is_dir() or (finished and not act.finished):
            return
        before = copy.deepcopy(game.disk)
        act.do(self._run, self._outside)
        game.disk.settle()
        game.story.append(hand.act)
        self.counts[f"people: {hand.act}"] += 1
        tree = files(self._run)
        try:
            self._process(game, None, may_refuse=True)
        except RefusedError as error:
            game.story.append(f"{error}; undone")
            self.counts["people: what was done, refused"] += 1
            if act.undo is None:
                self._unchanged(game, tree)
                game.disk = before
                before.restore()
        if act.undo is not None:
            act.undo(self._run)
            game.disk.settle()

    def _remove_rows(self, dice: random.Random, setup: Setup) -> None:
        """Let people remove the metrics of a run while it goes on: it has to say so."""
        game, plan, removed = self._new(dice, setup), Plan(), list[int]()
        metrics, place = self._run / "metrics.jsonl", dice.randrange(self._known(setup) * 2 // 3)

        def remove() -> None:
            if not removed and plan.count > place and metrics.exists():
                removed.append(plan.count)
                metrics.unlink()

        plan.meanwhile = remove
        with suppress(OSError, ValueError, TrainingError), self._inside(game, plan):
            Turns(setup.ranks, dice, plan).run(lambda: self._work(self._run, setup))
            told = metrics.exists() and b'"records_lost"' in metrics.read_bytes()
            if not told and (wrong := difference(outcome(self._run), game.whole)):
                raise game.lost(f"{wrong}: removed at operation {removed}, and nobody was told,")
        self.counts["people: metrics removed while the run went on"] += len(removed)

    def _refuse(self, game: Game, *, finished: bool) -> None:
        """Give a command with other settings: refused, without a byte changed."""
        assert self._other is not None
        ended = finished or (self._run / "summary.json").exists()
        if ended or CheckpointStore(self._run / "checkpoints").newest() is None:
            return  # there would be nothing to do, or it would be a new run
        plan, tree, other, told = Plan(), files(self._run), self._other, ""
        try:
            with self._inside(game, plan):
                turns = Turns(game.setup.ranks, game.dice, plan)
                turns.run(lambda: other(self._run, game.setup))
        except (ValueError, TrainingError, OSError, PeerLostError) as error:
            told = str(error)
        game.story.append(f"other settings: {told[:200]}")
        if not told:
            raise game.lost("other settings were not refused")
        self._unchanged(game, tree)
        self.counts["people: other settings, refused"] += 1

    def _unchanged(self, game: Game, tree: dict[str, Any]) -> None:
        now = files(self._run)
        for name in sorted(tree | now):
            if tree.get(name) != now.get(name):
                raise game.lost(f"{name} was changed by a command that was refused")

    @contextmanager
    def _inside(self, game: Game, plan: Plan) -> Iterator[None]:
        """This process is one of the game's."""
        world = World(game.disk, plan)
        with ExitStack() as stack:
            for part in (as_a_process(), world, noted(game, world, plan)):
                stack.enter_context(part)
            for slow in ("environment", "versions"):
                stack.enter_context(mock.patch.object(writing, slow, dict))
            yield


class RefusedError(Exception):
    """A process ended with a sentence, and nothing had gone wrong in it."""


def files(run: Path) -> dict[str, Any]:
    """What stands in a run's folder, without the lock and what the next process removes."""
    return {
        name: path.read_bytes() if path.is_file() else None
        for path in sorted(run.rglob("*"))
        if not (name := path.relative_to(run).as_posix()).startswith(("lock", "checkpoints/."))
    }


def rows_lost(checkpoint: Path, rows: Path) -> str:
    """The first file of rows that is not what a checkpoint counts on; nothing when all are."""
    holders = [
        path for name in ("shared", "state") if (path := checkpoint / f"{name}.json").exists()
    ]
    for name, extent in json.loads(holders[0].read_text())["cursor"].items() if holders else ():
        content = (rows / name).read_bytes() if (rows / name).is_file() else b""
        if hashlib.sha256(content[: extent["bytes"]]).hexdigest() != extent["sha256"]:
            return f"{name} is not what it was"
    return ""


def not_saved(run: Path) -> str:
    """The update that a run has made and not saved; nothing where there is none."""
    metrics = run / "metrics.jsonl"
    rows = read_jsonl(metrics) if metrics.exists() else []
    made = max((row["step"] for row in rows if row["stage"] == "rl"), default=0)
    saved = max(CheckpointStore(run / "checkpoints").steps(), default=0)
    return f"update {made} was made, {saved} is saved" if saved < made else ""


@contextmanager
def noted(game: Game, world: World, plan: Plan) -> Iterator[None]:
    """Note every checkpoint that is committed, and look at which are kept.

    Raises:
      LostError: at the end, where the process has ended well: one that was begun is not there.
    """
    begun, commit, save = list[int](), CheckpointStore.commit, Saver.save
    committed = list[int]()

    def noting(store: CheckpointStore, step: int, *rest: Any) -> Path:
        with world.outside():
            whole = {s for s in store.steps() if stores_of_checkpoints._whole(store.path(s))}
        path = commit(store, step, *rest)
        wanted = sorted({s for s in whole if s < step} | {step})[-(store.keep or 999) :]
        with world.outside():
            steps = store.steps()
        if not getattr(plan, "happened", "") and steps != wanted:
            raise LostError(f"{steps} are kept and not {wanted}")
        committed.append(step)
        game.last.append(step)
        return path

    def saving(saver: Saver, step: int, fill: Any) -> None:
        begun.append(step)
        save(saver, step, fill)

    with (
        mock.patch.object(CheckpointStore, "commit", noting),
        mock.patch.object(Saver, "save", saving),
    ):
        yield
    if missing := {*begun} - {*committed}:
        raise LostError(f"saving step {min(missing)} failed, and nobody was told")


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
    return Runs(standin.work, base, any_setup, partial(standin.work, seed=1))


def campaign(seeds: Iterable[int], make: Callable[[Path], Runs] = stand_in) -> dict[str, Any]:
    """Play every seed; counts of what happened, and the seeds that failed with their stories."""
    failures, schedules = {}, 0
    with memory_folder() as base:
        player = make(base)
        for seed in seeds:
            schedules += 1
            try:
                player.play(seed)
            except LostError as error:
                failures[seed] = str(error)
    counts = {"schedules": schedules, "operations of one process": player.operations}
    return {**counts, **dict(sorted(player.counts.items())), "failures": failures}
