"""What goes wrong, and when: drawn from a seed."""

import errno
import os
import random
import signal
from typing import NamedTuple

from .world import Dead, Plan

#: What an operation can fail with, once.
ERRORS = {
    "read": (errno.EIO, errno.EMFILE, errno.EACCES),
    "list": (errno.EIO, errno.EMFILE),
    "mmap": (errno.ENOMEM, errno.EIO),
    "flock": (errno.ENOLCK, errno.EIO, errno.EWOULDBLOCK),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG),
}
#: What takes room, and what changes anything.
GROWING = ("create", "write", "mkdir", "truncate", "rename")
CHANGING = (*GROWING, "unlink", "rmdir", "chmod", "fsync")

KINDS = (
    "power", "power", "power torn", "kill", "kill torn", "error", "error", "error torn", "short",
    "full", "read-only", "memory", "SIGTERM", "SIGINT", "SIGINT twice",
)  # fmt: skip


class Fault(NamedTuple):
    """One fault.

    Args:
      kind: of `KINDS`.
      place: number of the operation, from 0, of the process that it meets.
    """

    kind: str
    place: int


class Faults(Plan):
    """One process, in which up to one fault happens.

    Args:
      fault: what happens; nothing when None.
      dice: for the choice among errors.
    """

    def __init__(self, fault: Fault | None, dice: random.Random) -> None:
        super().__init__()
        self._fault, self._dice = fault, dice
        self._lasting = 0  # error of everything that changes the disk, from now on
        self._later = ""
        self.happened = ""

    @property
    def powerless(self) -> bool:
        """Whether the process ended because the machine did."""
        return self.dead and self.happened.startswith("power")

    def before(self, kind: str) -> bool:
        super().before(kind)
        if self._lasting and kind in (GROWING if self._lasting == errno.ENOSPC else CHANGING):
            raise _error(self._lasting)
        if self._later:
            later, self._later = self._later, ""
            raise _error(int(later))
        if self._fault is None or self.count <= self._fault.place or self.happened:
            return False
        return self._strike(self._fault.kind, kind)

    def _strike(self, what: str, kind: str) -> bool:
        """Let the fault happen at an operation of a kind; wait if it has no meaning there."""
        if (what.endswith("torn") or what == "short") and kind != "write":
            return False
        if what in ("full", "read-only", "memory") and kind not in CHANGING:
            return False
        self.happened = f"{what} at operation {self.count - 1}, {kind}"
        if what in ("power", "kill"):
            self.dead = True
            raise Dead
        if what == "error":
            raise _error(self._dice.choice(ERRORS.get(kind, ERRORS[""])))
        if what == "memory":
            raise MemoryError("cannot allocate")
        if what.startswith("SIG"):
            for _ in range(1 + what.endswith("twice")):
                signal.raise_signal(signal.Signals[what.split()[0]])
            return False
        if what in ("full", "read-only"):
            self._lasting = errno.ENOSPC if what == "full" else errno.EROFS
            return self.before(kind)
        return True

    def after_half(self) -> None:
        what = self.happened
        if what.startswith(("power", "kill")):
            self.dead = True
            raise Dead
        if what.startswith("error"):
            self._later = str(self._dice.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT)))


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def draw(dice: random.Random, operations: int) -> list[Fault]:
    """One to four faults, each of another process: the last one of a run is left alone.

    Args:
      dice: of the seed.
      operations: of a process without faults; a place past the end is a fault after it.
    """
    number = dice.choice((1, 1, 1, 2, 2, 3, 4))
    return [Fault(dice.choice(KINDS), dice.randrange(operations + 2)) for _ in range(number)]
