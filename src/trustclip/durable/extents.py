"""Append-only files: how far each is known to be on the disk, and what it holds up to there.

A checkpoint stores an extent beside the state it belongs to. On resume the file is cut back to it,
and a file that has lost or changed content before it is refused: its rows will not come again, and
a report would read the damaged ones as results.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

_BLOCK = 2**20


class Extent(TypedDict):
    """Size of a file in bytes and the SHA-256 of them, in hexadecimal."""

    bytes: int
    sha256: str


class Extents:
    """Extents of files that only grow: each byte is read once, when it is first measured."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[int, Any]] = {}  # bytes hashed so far, and their hash

    def of(self, path: Path) -> Extent:
        """The extent of a file, once its content is safely on the disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            return {"bytes": size, "sha256": self._hash(path, file, size)}

    def restore(self, path: Path, extent: Extent | int, *, cut: bool = True) -> None:
        """Check a file up to an extent and cut it back to it.

        Args:
          path: the file.
          extent: an earlier return value of `of`; checkpoints of trustclip 0.1 hold only its size.
          cut: remove what came after; otherwise the file is only checked.

        Raises:
          ValueError: the file is shorter than the extent, or holds something else.
        """
        size = extent if isinstance(extent, int) else extent["bytes"]
        found = path.stat().st_size if path.exists() else 0
        if not path.exists() or found < size:
            raise ValueError(
                f"{path} has lost lines since the checkpoint: {size} bytes then, {found} now. "
                f"{_REMEDY}"
            )
        self._read.pop(path, None)
        if not isinstance(extent, int):
            with path.open("rb") as file:
                if self._hash(path, file, size) != extent["sha256"]:
                    raise ValueError(
                        f"{path} has changed since the checkpoint: its first {size} bytes are not "
                        f"those that the run wrote. {_REMEDY}"
                    )
        if cut and found > size:
            os.truncate(path, size)

    def _hash(self, path: Path, file: BinaryIO, size: int) -> str:
        done, digest = self._read.get(path, (0, hashlib.sha256()))
        if done > size:  # it has been cut
            done, digest = 0, hashlib.sha256()
        file.seek(done)
        while done < size and (block := file.read(min(_BLOCK, size - done))):
            digest.update(block)
            done += len(block)
        self._read[path] = done, digest
        return digest.hexdigest()


#: Values of a checkpoint's ``cursor``, by name of the file.
Cursor = Mapping[str, Extent | int]

_REMEDY = (
    "Restore the file from a copy, or choose another --output-dir: the folders in `checkpoints/` "
    "can be loaded as models."
)
