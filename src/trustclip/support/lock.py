"""One process per folder, by a kernel lock (`flock`) that is released when its holder ends."""

import contextlib
import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trustclip.support.inside import itself

#: Name of the lock file. Its text is for people only; the kernel holds the lock itself.
LOCK = "lock"

#: What `flock` fails with on a file system that has no locks, such as some NFS mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_lock_files: set[IO[str]] = set()


def rank() -> int:
    """Rank of this process in its job; 0 for a process that runs alone."""
    return _job()[0]


def world() -> int:
    """Number of ranks in the job; 1 for a process that runs alone."""
    return _job()[1]


def _job() -> tuple[int, int]:
    """Rank and number of ranks.

    Raises:
      ValueError: only one of ``RANK`` and ``WORLD_SIZE`` is set, or they are not those of a rank.
    """
    texts = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
    if texts in ({"RANK": "", "WORLD_SIZE": ""}, {"RANK": "", "WORLD_SIZE": "1"}):
        return 0, 1
    if all(text.isdecimal() for text in texts.values()):
        own, ranks = map(int, texts.values())
        if own < ranks:
            return own, ranks
    raise ValueError(
        f"the environment says RANK={texts['RANK']!r} and WORLD_SIZE={texts['WORLD_SIZE']!r}, "
        "which is no rank of a job: a launcher such as torchrun sets both; for a process that "
        "runs alone, unset both."
    )


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Lock a folder, created if missing, so that no other process works in it.

    The ranks of a job are one process here: the first one holds the folder for all.

    Example:
      >>> import tempfile
      >>> folder = Path(tempfile.mkdtemp())
      >>> with only_process(folder), only_process(folder):
      ...     pass
      Traceback (most recent call last):
      ...
      ValueError: ... is in use by another process (pid ...); wait until it has ended, ...
    """
    if rank() > 0:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a+", encoding="utf-8", opener=itself) as file:
        if not locked(file):
            file.seek(0)
            holder = file.read().strip() or "its pid is not recorded"
            raise ValueError(
                f"{folder} is in use by another process ({holder}); wait until it has ended, or "
                "choose another folder."
            )
        # A full disk must not fail at the holder's name: the first real write reports it better.
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"pid {os.getpid()} on {os.uname().nodename}".encode())
        _lock_files.add(file)
        try:
            yield
        finally:
            _lock_files.discard(file)


def locked(file: IO[str] | IO[bytes]) -> bool:
    """Lock an open file until it is closed; False if another process has locked it.

    Where the file system has no locks this warns, and passes.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{file.name} cannot be locked ({error.strerror}): make sure that no other process "
            "works in its folder.",
            stacklevel=3,
        )
    return True


def _release() -> None:
    """Release the lock in a forked child, such as a data loader's worker."""
    for file in _lock_files:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, file.fileno(), inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_release)
