"""Append-only files: how far each is safely on the disk, and the hash of its content up to there.

A checkpoint stores an extent beside the state it belongs to. On resume the file is cut back to it,
and a file that has lost or changed content before it is refused: its rows will not come again, and
a report would read the damaged ones as results. What a file held at every earlier checkpoint is
chained in the extent, so that a change is located between two of them. While the run goes on,
`Extents.changed` reports files that somebody has deleted, cut or replaced.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict

from trustclip.support.inside import itself

_BLOCK = 2**20

#: A size of a file at some checkpoint, and a SHA-256 in hexadecimal: of the link before, as 32
#: bytes, and of what the file has grown by since then.
Link = list[Any]


class Extent(TypedDict):
    """Size of a file in bytes, and the SHA-256 of them in hexadecimal.

    ``chain`` has a link for each checkpoint so far; a chain of one link is left out.
    """

    bytes: int
    sha256: str
    chain: NotRequired[list[Link]]


class Extents:
    """Extents of files that only grow: each byte is read once, when it is first measured."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, Any, Any]] = {}  # bytes; hashes of all and of a link
        self._chains: dict[Path, list[Link]] = {}
        self._status: dict[Path, tuple[int, int, int]] = {}  # device, inode and size

    def of(self, path: Path) -> Extent:
        """The extent of a file, once its content is safely on the disk."""
        with open(path, "rb", opener=itself) as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            sha256 = self._hash(path, file, size)
        chain = self._chains.setdefault(path, [])
        if size > (chain[-1][0] if chain else 0):
            _, whole, link = self._read[path]
            chain.append([size, link.hexdigest()])
            self._read[path] = size, whole, hashlib.sha256(link.digest())
        extent: Extent = {"bytes": size, "sha256": sha256}
        if len(chain) > 1:
            extent["chain"] = [[*each] for each in chain]
        return extent

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
        for table in (self._read, self._chains, self._status):
            table.pop(path, None)

    def restore(self, path: Path, extent: Extent | int, *, cut: bool = True) -> None:
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
            self._chains[path] = chain = links(extent)
            if chain:
                link = hashlib.sha256(bytes.fromhex(chain[-1][1]))
                self._read[path] = size, self._read[path][1], link
        if cut and size_now > size:
            with open(path, "r+b", opener=itself) as file:
                os.ftruncate(file.fileno(), size)

    def _hash(self, path: Path, file: BinaryIO, size: int) -> str:
        done, whole, link = self._read.get(path, (0, hashlib.sha256(), hashlib.sha256()))
        if done > size:  # it has been cut
            self._chains.pop(path, None)
            done, whole, link = 0, hashlib.sha256(), hashlib.sha256()
        file.seek(done)
        while done < size and (block := file.read(min(_BLOCK, size - done))):
            whole.update(block)
            link.update(block)
            done += len(block)
        self._read[path] = done, whole, link
        return whole.hexdigest()


def links(extent: Extent) -> list[Link]:
    """The chain of an extent, also where it is left out.

    Example:
      >>> links({"bytes": 0, "sha256": "..."}), links({"bytes": 7, "sha256": "ab"})
      ([], [[7, 'ab']])
    """
    alone: list[Link] = [[extent["bytes"], extent["sha256"]]] if extent["bytes"] else []
    return [[*link] for link in extent.get("chain", alone)]


#: Values of a checkpoint's ``cursor``, by name of the file.
Cursor = Mapping[str, Extent | int]

_REMEDY = (
    "Restore the file from a copy, or choose another --output-dir: the folders in `checkpoints/` "
    "can be loaded as models."
)
