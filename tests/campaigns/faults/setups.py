"""How a run is set up, and what people do to it between processes: drawn from the seed."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Setup(NamedTuple):
    """What a run is started with; no result depends on it.

    Args:
      keep: how many checkpoints, None for all.
      every: updates between two checkpoints; 0 saves only where the run is asked to stop.
      background: whether they are written while training goes on.
      ranks: number of processes of the job.
    """

    keep: int | None = 2
    every: int = 2
    background: bool = False
    ranks: int = 1


#: The undisturbed run with which all others are compared: it keeps every state.
REFERENCE = Setup(keep=None, every=1)

#: Draws a setup.
Draw = Callable[[random.Random], Setup]


def any_setup(dice: random.Random) -> Setup:
    """For trainers."""
    return store_setup(dice)._replace(
        background=dice.random() < 0.3,
        ranks=dice.choice((1, 1, 1, 2, 3)),
    )


def store_setup(dice: random.Random) -> Setup:
    """For a store of checkpoints alone."""
    return Setup(keep=dice.choice((1, 2, 2, None)), every=dice.choice((0, 1, 2, 2, 3)))


class Hand(NamedTuple):
    """What people do between two processes.

    Args:
      after: number of the process before it.
      act: name in `ACTS`, or "refused": they give a command with other settings.
    """

    after: int
    act: str


#: Files outside of the run that links lead to.
OUTSIDE = {"file": b"not of this run\n", "folder/config.json": b"not of this run\n"}


class Act(NamedTuple):
    """Something that people do to a run between two processes.

    Args:
      do: it, given the run's folder and one outside of it.
      undo: what they do after a refusal; None puts back all that was there, and nothing else may
        have changed.
      finished: whether a finished run is left whole, or can be made whole again.
    """

    do: Callable[[Path, Path], None]
    undo: Callable[[Path], None] | None = None
    finished: bool = True


def _removed(*names: str) -> Callable[[Path, Path], None]:
    def act(run: Path, _: Path) -> None:
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    return act


def _no_newest(run: Path, _: Path) -> None:
    for path in sorted((run / "checkpoints").glob("step-*"))[-1:]:
        shutil.rmtree(path)


def _linked(name: str, target: str = "", *, finished: bool = True) -> Act:
    """A link in the place of a file or folder of the run, which is moved away.

    Args:
      name: of it.
      target: what the link leads to, outside of the run; nothing for what was moved away.
      finished: as for `Act`.
    """

    def do(run: Path, outside: Path) -> None:
        aside = run.parent / "aside"
        if os.path.lexists(run / name):
            os.rename(run / name, aside)
        if target or aside.exists():
            (run / name).symlink_to(outside / target if target else aside)

    def undo(run: Path) -> None:
        if (run / name).is_symlink():
            (run / name).unlink()
            if (run.parent / "aside").exists():
                os.rename(run.parent / "aside", run / name)

    return Act(do, undo, finished)


#: By name.
ACTS: dict[str, Act] = {
    "checkpoints removed": Act(_removed("checkpoints")),
    "newest checkpoint removed": Act(_no_newest),
    "final model removed": Act(_removed("final")),
    "metrics removed": Act(_removed("metrics.jsonl"), finished=False),
    "samples removed": Act(_removed("samples.jsonl"), finished=False),
    "run removed": Act(_removed("")),
    "checkpoints moved, with a link": _linked("checkpoints"),
    "lock is a link": _linked("lock", "file"),
    "part of the summary is a link": _linked("summary.json.part", "file"),
    "final model is a link": _linked("final", "folder", finished=False),
    "tokens are a link": _linked("tokens", "folder", finished=False),
}


def draw_hand(dice: random.Random, processes: int) -> Hand | None:
    """What happens between the processes of a run: mostly nothing."""
    if dice.random() < 0.5:
        return None
    return Hand(dice.randrange(processes + 1), dice.choice((*["refused"] * 6, *ACTS)))
