"""What tests of whole processes run: forked workers that are killed, several ranks.

``durable_processes.py kill FOLDER N | ranks FOLDER | stops FOLDER``; a line of
JSON tells the rest.
Importing takes ten times as long as a run, so one process imports and forks the others.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from durable_runs import cut_everywhere, differences, grpo
from patience import NEVER

from trustclip.train.durable.ranks import leave
from trustclip.train.durable.store import CheckpointError, CheckpointStore

SETTINGS = {
    "method": {"name": "atr", "delta": 0.01},
    "steps_per_generation": 2,
    "num_iterations": 2,
    "per_device_train_batch_size": 8,
    "max_steps": 12,
    "logging_steps": 2,
    "save_total_limit": 3,
}


def forked(action: Callable[[], None]) -> int:
    """Process id of a copy of this process that does something and ends."""
    child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("ignore")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            action()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def exit_code(child: int) -> int:
    """How a process ended, once it has: 0 if well, minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(folder: Path, **settings) -> None:
    if not grpo(folder, **{**SETTINGS, **settings}).train_durably():
        raise RuntimeError("stopped early")


def kill(folder: Path, kills: int) -> None:
    """Kill training ``kills`` times, every other time while a checkpoint is being written."""
    assert exit_code(forked(lambda: train(folder / "whole", save_total_limit=None))) == 0
    dice = random.Random(0)
    told = {
        "kills": 0, "while_writing": 0, "unrecoverable": [], "more_than_one_interval_lost": 0,
        "complete_runs": 0, "different": [],
    }  # fmt: skip
    run, reached = folder / "run-0", 0
    while told["kills"] < kills or run.exists():
        child = forked(lambda run=run: train(run))
        if told["kills"] < kills:
            _kill_some_time(child, run, dice)
        code = exit_code(child)
        if code == -signal.SIGKILL:
            told["kills"] += 1
            told["while_writing"] += bool(list((run / "checkpoints").glob(".[wr]*")))
            try:
                newest = CheckpointStore(run / "checkpoints").newest()
            except CheckpointError as error:
                told["unrecoverable"].append(str(error))
                break
            step = 0 if newest is None else int(newest.name[5:])
            told["more_than_one_interval_lost"] += step < reached
            reached = step
        elif code == 0:
            told["complete_runs"] += 1
            told["different"] += differences(folder / "whole", run, after=SETTINGS["max_steps"] - 1)
            run, reached = folder / f"run-{told['complete_runs']}", 0
        else:
            told["unrecoverable"].append(f"a worker ended with {code}")
            break
    print(json.dumps(told))


def _kill_some_time(child: int, run: Path, dice: random.Random) -> None:
    """Kill a worker: at any moment, or while it writes one of its next checkpoints."""
    patience = NEVER if dice.random() < 0.6 else dice.uniform(0.1, 3)
    end, writes, was = time.monotonic() + patience, dice.randint(1, 3), False
    while time.monotonic() < end and os.waitid(os.P_PID, child, _LOOK) is None:
        writing = bool(list((run / "checkpoints").glob(".writing-step*")))
        writes -= writing and not was
        was = writing
        if patience == NEVER and writes == 0:
            time.sleep(dice.uniform(0, 0.008))
            break
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)


_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def ranks(folder: Path) -> None:
    """A run of two processes, cut at every update; SIGTERM and a full disk on one of them."""
    from accelerate.utils import gather_object

    settings = {**SETTINGS, "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 2}
    settings |= {"save_total_limit": None}
    whole = grpo(folder / "whole", **settings)
    assert whole.train_durably()
    first = whole.accelerator.is_main_process
    found = cut_everywhere(whole, folder, settings)

    stopped = grpo(folder / "stopped", **settings)
    reward = stopped.reward_funcs[0]
    if not first:
        type(reward).state_dict = lambda self: os.kill(os.getpid(), signal.SIGTERM) or {"calls": 0}
    ended = not stopped.train_durably() and stopped.stopped_early

    def no_space(self) -> dict:
        raise OSError(28, "No space left on device")

    if not first:
        type(reward).state_dict = no_space
    message = ""
    try:
        grpo(folder / "failing", **settings).train_durably()
    except CheckpointError as error:
        message = str(error)
    told = {
        "files": sorted(p.name for p in (folder / "whole/checkpoints/step-000006").glob("rank*")),
        "different": found,
        "stopped": gather_object([ended]),
        "failure": gather_object([message]),
    }
    if first:
        print(json.dumps(told))


def stops(folder: Path) -> None:
    """A run of two processes; one of them is asked to stop inside its generations and updates."""
    import pytest
    from accelerate.utils import gather_object
    from test_stops import SPARSE, Passes, different

    settings = {**SETTINGS, "per_device_train_batch_size": 4, "max_steps": 6}
    settings |= {"save_total_limit": None}
    whole = grpo(folder / "whole", **settings)
    assert whole.train_durably()
    accelerator, first, told = whole.accelerator, whole.accelerator.is_main_process, []
    for decoder, at in (("auto", 12), ("auto", 9), ("transformers", 14), ("transformers", 3)):
        place = folder / f"{decoder}-{at}"
        base = {**settings, "decoder": decoder}
        if decoder != "auto":
            grpo(place / "whole", **base).train_durably()
        with pytest.MonkeyPatch.context() as patch:
            trainer = grpo(place, **{**base, **SPARSE})
            passes = Passes(trainer, patch, 0 if first else at)
            ended = not trainer.train_durably() and trainer.stopped_early
        trainer = grpo(place, **{**base, **SPARSE})
        torch.manual_seed(99)
        assert trainer.train_durably()
        accelerator.wait_for_everyone()
        uncut = folder / "whole" if decoder == "auto" else place / "whole"
        found = different(place, uncut) if first else []
        row = {"ended": ended, "different": found, "in": passes.unfinished, "after": passes.after}
        told.append(gather_object([row]))
    if first:
        print(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    command, place = sys.argv[1], Path(sys.argv[2])
    {"ranks": ranks, "stops": stops}[command](place) if command != "kill" else kill(
        place, int(sys.argv[3])
    )
    leave()
