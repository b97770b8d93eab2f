"""What a stage consists of: cases, each of which is run, recorded and resumed by itself."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trustclip_lab.bench.gpu import STAGES
from trustclip_lab.bench.table import Table

State = Literal["done", "failed", "cannot"]


class CannotRun(Exception):
    """A case needs what this machine does not have; the message says what."""


@dataclass(frozen=True)
class Place:
    """Where cases run.

    Args:
      device: ``"cuda"`` or ``"cpu"``.
      tiny: shapes that a CPU finishes in seconds; the figures then mean nothing.
      folder: of the session, for what a case has to keep.
    """

    device: str
    tiny: bool
    folder: Path

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def needs_cuda(self, what: str) -> None:
        """Raise `CannotRun` on a CPU."""
        if not self.cuda:
            raise CannotRun(f"{what} needs a GPU")


@dataclass(frozen=True)
class Case:
    """One measurement.

    Args:
      key: its name within the stage.
      run: makes it; returns JSON values.
      seconds: expected on a large GPU; it is not begun in less time.
    """

    key: str
    run: Callable[[Place], dict[str, Any]]
    seconds: float = 20.0


@dataclass(frozen=True)
class Row:
    """Outcome of a case.

    Args:
      stage: name of the stage.
      key: of the case.
      state: ``"done"``; ``"failed"``; ``"cannot"``: this machine lacks something.
      why: for the last two, one sentence.
      values: what the case returned.
      seconds: it took.
    """

    stage: str
    key: str
    state: State
    why: str = ""
    values: Mapping[str, Any] | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Stage:
    """Cases of one kind.

    Args:
      title: heading of its section.
      minutes: of a first round; a second round gets the rest of the session's time.
      cases: the cases in this place, the most telling first.
      tables: of the rows that are done.
      needs: packages without which no case can run.
      timed: whether its tables are of times and memory, which say nothing at tiny shapes.
    """

    title: str
    minutes: float
    cases: Callable[[Place], Sequence[Case]]
    tables: Callable[[Sequence[Row]], list[Table]]
    needs: tuple[str, ...] = ()
    timed: bool = False


@contextlib.contextmanager
def kernels_in_head() -> Iterator[None]:
    """The Triton kernels in place of the head's plain functions, for the block."""
    try:
        from trustclip_lab.bench.gpu import kernels
    except ModuleNotFoundError as error:
        raise CannotRun(f"{error.name} is not installed here") from error
    with kernels.in_head():
        yield


def stage(name: str) -> Stage:
    """The stage of a name in `STAGES`."""
    return importlib.import_module(f"trustclip_lab.bench.gpu.{STAGES[name]}").STAGE
