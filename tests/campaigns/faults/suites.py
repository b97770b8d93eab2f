"""Suites that meet faults: the suite's process, its runs, its disk, and a second host.

The suite is the product's own; its runs are simulated: each writes the files of a run directory,
an update at a time, while the suite waits. What comes from the seed: faults of the suite's file
operations (as in `faults.runs`), runs that crash, hang on after their suite has died or leave a
half-written summary, and a second ``trustclip suite`` on the same folder. Every call ends with a
status or one sentence; never do two runs work in one folder; once the faults have ended, one more
call finishes the suite with the table of an undisturbed one.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import yaml
from rich.console import Console

from trustclip.support.jsonl import append_jsonl, write_text
from trustclip.train.suite import run as suite_run
from trustclip.train.suite.run import run_suite

from . import runs as base_runs
from .disk import Disk
from .plans import KINDS, Fault, Faults
from .runs import LostError, memory_folder
from .world import Dead, Plan, World

RECIPE = {
    "name": "small", "model": "tiny", "output_dir": "runs/small", "seed": 7,
    "sft": {"dataset": "arithmetic", "max_steps": 2},
    "rl": {
        "dataset": "arithmetic", "max_steps": 4, "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1, "num_iterations": 2,
    },
    "eval": {"tasks": "arithmetic", "k": 2},
}  # fmt: skip
SUITE = {
    "name": "trial", "recipe": "recipe.yaml", "seeds": [0, 1],
    "methods": {"atr": {"name": "atr"}, "clip": {"name": "clip"}},
}  # fmt: skip
#: Calls after which a suite has to be finished.
PATIENCE = 12


class Machine:
    """Simulated processes, which outlive the suite that started them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.alive = dice, dict[Path, "Process"]()
        self.crashes = 0

    def tick(self) -> None:
        """Let some of the processes do their next update."""
        for process in list(self.alive.values()):
            if self.dice.random() < 0.7:
                process.step()


class Process:
    """One simulated run: it continues from its own ``state.json``."""

    def __init__(self, machine: Machine, folder: Path, command: Sequence[str]) -> None:
        self._machine, self._folder = machine, folder
        self._recipe = yaml.safe_load(Path(command[-1]).read_text()) if "run" in command else None
        self.pid, self.started, self.status = 1000, time.monotonic(), None
        self._ending = False
        state = folder / "state.json"
        self._done = json.loads(state.read_text()) if state.exists() else 0
        if folder in machine.alive:
            raise LostError(f"two runs in {folder.name}")
        machine.alive[folder] = self
        write_text(folder / "config.yaml", "command: run\n")

    def step(self) -> None:
        """One update; the last one is followed by the summary."""
        dice, total = self._machine.dice, 2 if self._recipe is None else 4
        if self._machine.crashes and dice.random() < 0.2:
            self._machine.crashes -= 1
            if dice.random() < 0.3:
                (self._folder / "summary.json").write_text('{"finished": tr')
            return self._end(dice.choice((1, -9, -11)))
        if self._ending:
            return self._end(0)
        if self._done < total:
            self._done += 1
            row = {"stage": "rl", "step": self._done, "reward": self._done / total}
            append_jsonl(self._folder / "metrics.jsonl", [row])
            write_text(self._folder / "state.json", str(self._done))
            return None
        if self._recipe is None:
            (self._folder / "final").mkdir(exist_ok=True)
        else:
            self._evaluate()
        write_text(self._folder / "summary.json", '{"command": "run", "finished": true}')
        return self._end(0)

    def _evaluate(self) -> None:
        assert self._recipe is not None
        seed = self._recipe["seed"]
        rows = [
            {"stage": "eval", "step": 4, "task": "arithmetic", "id": str(i), "k": k,
             "correct": int((i + k + seed) % 3 == 0)}
            for i in range(6) for k in range(2)
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self._folder / "samples.jsonl", text)

    def _end(self, status: int) -> None:
        self.status = status
        self._machine.alive.pop(self._folder, None)

    def poll(self) -> int | None:
        return self.status

    def ask_to_end(self) -> None:
        self._ending = True

    def kill(self) -> None:
        if self.status is None:
            self._end(-9)

    def last_lines(self) -> list[str]:
        return ["the last line"]


class Orphan:
    """A process of an earlier call, of which a suite only knows that it is alive."""

    pid = None

    def __init__(self, process: Process) -> None:
        self._process, self.started = process, time.monotonic()

    def poll(self) -> int | None:
        return None if self._process.status is None else 0

    def ask_to_end(self) -> None: ...

    kill = ask_to_end

    def last_lines(self) -> list[str]:
        return []


class Suites:
    """Schedules of faults on one suite.

    Args:
      base: a folder for it.
    """

    def __init__(self, base: Path) -> None:
        self._root, self.counts = base / "disk", Counter[str]()
        (base / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        self._file = base / "suite.yaml"
        self._file.write_text(yaml.safe_dump({**SUITE, "output_dir": str(self._root / "out")}))
        plan = Plan()
        disk, machine = self._new(random.Random(0))
        assert self._call(disk, machine, plan, ()) == 0
        self.operations, self._table = plan.count, self._results()

    def _new(self, dice: random.Random) -> tuple[Disk, Machine]:
        base_runs.emptied(self._root)
        return Disk(self._root), Machine(dice)

    def _results(self) -> Any:
        return (self._root / "out" / "table.md").read_text()

    def _call(self, disk: Disk, machine: Machine, plan: Plan, hosts: Sequence[int]) -> int:
        """One ``trustclip suite``; at some of its waits, another one on the same folder."""
        world, waits = World(disk, plan), 0

        def start(folder: Path, command: Sequence[str], slot: int) -> Process | Orphan:
            with world.outside():
                if folder in machine.alive:
                    return Orphan(machine.alive[folder])
                return Process(machine, folder, command)

        def wait(_: float) -> None:
            nonlocal waits
            waits += 1
            with world.outside():
                machine.tick()
                if waits in hosts:
                    self._second_host()

        launcher = SimpleNamespace(start=start)
        clock = SimpleNamespace(sleep=wait, monotonic=time.monotonic, strftime=time.strftime)
        with (
            world,
            mock.patch.object(suite_run, "Local", lambda _: launcher),
            mock.patch.object(suite_run, "time", clock),
        ):
            return run_suite(self._file, Console(file=StringIO()), max_parallel=2)

    def _second_host(self) -> None:
        self.counts["second hosts"] += 1
        try:
            run_suite(self._file, Console(file=StringIO()), max_parallel=2)
        except ValueError as error:
            if "in use by another process" in str(error):
                return
        raise LostError("a second suite works in the same folder")

    def play(self, seed: int) -> list[str]:
        """Let the faults of a seed happen; see `faults.runs.Runs.play`."""
        dice = random.Random(seed)
        disk, machine = self._new(dice)
        number, story = dice.choice((0, 1, 1, 2, 3)), list[str]()
        machine.crashes = dice.choice((0, 0, 1, 3))
        for call in range(PATIENCE):
            kind = dice.choice(KINDS)
            fault = Fault(kind, dice.randrange(self.operations)) if call < number else None
            plan = Faults(fault, dice)
            hosts = () if call and fault else (dice.randrange(1, 9), dice.randrange(1, 9))
            status = self._ended(disk, machine, plan, hosts, story)
            self.counts["calls"] += 1
            self.counts[f"fault: {kind}" if plan.happened else "undisturbed"] += 1
            if plan.powerless:
                machine.alive.clear()
                disk.cut_power(dice)
            if fault is None and status == 0:
                if self._results() != self._table:
                    raise LostError(f"another table after: {'; '.join(story)}")
                return story
            if fault is None and not machine.crashes:
                machine.crashes = -1  # from here on, one call must do
            elif machine.crashes == -1:
                raise LostError(f"status {status} without faults after: {'; '.join(story)}")
        raise LostError(f"not finished after {PATIENCE} calls: {'; '.join(story)}")

    def _ended(
        self, disk: Disk, machine: Machine, plan: Faults, hosts: Sequence[int], story: list[str]
    ) -> int:
        """Status of one call: 2 for a sentence, -1 when its process was killed."""
        try:
            with base_runs.as_a_process():
                status = self._call(disk, machine, plan, hosts)
            end = f"status {status}"
        except Dead:
            status, end = -1, "dead"
        except (OSError, ValueError, MemoryError) as error:
            if not plan.happened:
                raise LostError(f"refused: {error} after: {'; '.join(story)}") from error
            status, end = 2, f"ended with {error!r}"[:300]
        except (KeyboardInterrupt, SystemExit) as error:
            status, end = -1, f"left by {error!r}"
        except BaseException as error:
            text = f"{error!r} at {plan.happened or 'nothing'} after: {'; '.join(story)}"
            raise error if isinstance(error, LostError) else LostError(text) from error
        plan.dead = True
        story.append(f"{plan.happened or 'nothing'}: {end}")
        return status


def campaign(seeds: Iterable[int]) -> dict[str, Any]:
    """Play every seed; see `faults.runs.campaign`."""
    with memory_folder() as base:
        return base_runs.played(seeds, Suites(base))
