"""Flushing to the disk: content by file, names by the folder that they stand in.

`fsync` of a file says nothing about its name. A file, folder or rename whose folder has not been
flushed can be gone after a power cut, with all that was safe inside.
"""

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from trustclip.support.inside import itself

#: A folder that we may not change is not ours: its names are older than a run.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
#: Some file systems flush no folders.
_NOT_FLUSHED = (errno.EINVAL, errno.ENOTSUP)


def flush(path: Path) -> None:
    """Flush the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Flush everything in a folder, and the folder's own name."""
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            flush(path)
    flush_way(folder)


def flush_way(path: Path) -> None:
    """Flush the names on the way to a path, any of which may be new.

    Example:
      >>> import tempfile
      >>> folder = Path(tempfile.mkdtemp(), "a", "b")
      >>> folder.mkdir(parents=True)
      >>> flush_way(folder)
    """
    for folder in path.absolute().parents:
        try:
            flush(folder)
        except OSError as error:
            ours = os.access(folder, os.R_OK | os.W_OK)
            if error.errno not in _NOT_FLUSHED and (ours or error.errno not in _NOT_OURS):
                raise


class Listed(TypedDict):
    """Size of a file in bytes, and the SHA-256 of them in hexadecimal."""

    bytes: int
    sha256: str


def manifest_entries(folder: Path, files: Iterable[Path]) -> dict[str, Listed]:
    """Entries of a manifest for files in a folder, once their content is on the disk."""
    entries: dict[str, Listed] = {}
    for path in files:
        flush(path)
        name = path.relative_to(folder).as_posix()
        entries[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return entries


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb", opener=itself) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
