"""Flushing to the disk: content by file, names by the folder that they stand in.

`fsync` of a file says nothing about its name. A file, folder or rename whose folder has not been
flushed can be gone after a power cut, with all that was safe inside.
"""

import errno
import os
from pathlib import Path

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
