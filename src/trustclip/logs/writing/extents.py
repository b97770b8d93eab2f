"""Append-only files: how far each is safely on the disk, and the hash of its content up to there.

A checkpoint stores an extent beside the state it belongs to. On resume the file is cut back to it,
and a file that has lost or changed content before it is refused: its rows will not come again, and
a report would read the damaged ones as results. While the run goes on, `Extents.changed` reports
files that somebody has deleted, cut or replaced.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trustclip.support.flush import Listed
from trustclip.support.inside import itself

_BLOCK = 2**20


class Extents:
    """Extents of files that only grow: each byte is read once, when it is first measured."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, Any]] = {}  # bytes, and their hash
        self._status: dict[Path, tuple[int, int, int]] = {}  # device, inode and size

    def of(self, path: Path) -> Listed:
        """The extent of a file, once its content is safely on the disk."""
        with open(path, "rb", opener=itself) as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            sha256 = self._hash(path, file, size)
        return {"bytes": size, "sha256": sha256}

    def wrote(self, path: Path, *, replaced: bool = False) -> None:
        """Remember the current status of a file: from here on it can only grow.

        The status of one that others have deleted or replaced since the last look is kept, so that
        `changed` reports it.
        """
        if replaced or path not in self._status or not self._changed(path):
            status = path.stat()
            self._status[path] = status.st_dev, status.st_ino, status.st_size

    def changed(self) -> dict[Path, str]:
        """What others have done to the files that were here, in words; each is reported once.

        A file that has been deleted, cut or replaced counts as a new one afterwards.
        """
        changes = {path: text for path in self._status if (text := self._changed(path))}
        for path in changes:
            self.forget(path)
        return changes

    def _changed(self, path: Path) -> str:
        *identity, size = self._status[path]
        try:
            status = path.stat()
        except FileNotFoundError:
            return f"deleted, with {size} bytes"
        if identity != [status.st_dev, status.st_ino]:
            return f"replaced by another file: {size} bytes then, {status.st_size} now"
        cut = status.st_size < size
        return f"cut from {size} bytes to {status.st_size}" if cut else ""

    def forget(self, path: Path) -> None:
        """Treat a file as a new one."""
        for table in (self._read, self._status):
            table.pop(path, None)

    def restore(self, path: Path, extent: Listed | int, *, cut: bool = True) -> None:
        """Check a file up to an extent of `of`, and cut it back to it unless told otherwise.

        A ValueError says that the file is shorter, or holds something else. Checkpoints of
        trustclip 0.1 hold only the size of an extent.
        """
        size = extent if isinstance(extent, int) else extent["bytes"]
        size_now = path.stat().st_size if path.exists() else 0
        if not path.exists() or size_now < size:
            raise ValueError(
                f"{path} has lost lines since the checkpoint: {size} bytes then, {size_now} now. "
                f"{_REMEDY}"
            )
        self.forget(path)
        if not isinstance(extent, int):
            with open(path, "rb", opener=itself) as file:
                if self._hash(path, file, size) != extent["sha256"]:
                    raise ValueError(
                        f"{path} has changed since the checkpoint: its first {size} bytes are not "
                        f"those that the run wrote. {_REMEDY}"
                    )
        if cut and size_now > size:
            with open(path, "r+b", opener=itself) as file:
                os.ftruncate(file.fileno(), size)

    def _hash(self, path: Path, file: BinaryIO, size: int) -> str:
        done, whole = self._read.get(path, (0, hashlib.sha256()))
        if done > size:  # it has been cut
            done, whole = 0, hashlib.sha256()
        file.seek(done)
        while done < size and (block := file.read(min(_BLOCK, size - done))):
            whole.update(block)
            done += len(block)
        self._read[path] = done, whole
        return whole.hexdigest()


#: Values of a checkpoint's ``cursor``, by name of the file.
Cursor = Mapping[str, Listed | int]

_REMEDY = (
    "Restore the file from a copy, or choose another --output-dir: the folders in `checkpoints/` "
    "can be loaded as models."
)
