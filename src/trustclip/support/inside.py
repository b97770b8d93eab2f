"""The gate between the names that a file states and the files of this machine.

A checkpoint's cursor, a manifest, a copy elsewhere and a table name files; whoever wrote them may
have written ``../../thesis.tex``, or put a link in the place of a file. `Inside` is the only place
where such a name becomes a path, to write or to read, and `itself` opens what is there, never what
it links to.
"""

import errno
import os
import stat
from pathlib import Path

_WHY = (
    "a run directory or checkpoint from elsewhere could have any file of yours overwritten in that "
    "way."
)


class OutsideError(ValueError):
    """A name or a link leads out of the folder that it stands in, or to no regular file."""


class Inside:
    """The files in a folder, by names that a file states.

    The folder itself may be reached by a link: the user has named it.

    Example:
      >>> import tempfile
      >>> files = Inside(Path(tempfile.mkdtemp()))
      >>> files.path("tokens/update-000001.parquet").name
      'update-000001.parquet'
      >>> files.path("../thesis.tex")
      Traceback (most recent call last):
      ...
      trustclip.support.inside.OutsideError: '../thesis.tex' is no name of a file in ...
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: object) -> Path:
        """The path of a name: an existing regular file, or nothing yet.

        Raises:
          OutsideError: the name is absolute or leads outside, a link stands on the way, or
            something else than a regular file at its end.
        """
        parts = name.split("/") if isinstance(name, str) else [""]
        if {"", ".", ".."} & {*parts} or "\0" in str(name):
            raise OutsideError(f"{name!r} is no name of a file in {self._root}: {_WHY}")
        path = self._root
        for number, part in enumerate(parts, start=1):
            path = path / part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(mode):
                raise OutsideError(f"{path} is a link: {_WHY}")
            if not (stat.S_ISREG(mode) if number == len(parts) else stat.S_ISDIR(mode)):
                raise OutsideError(f"{path} is no {'file' if number == len(parts) else 'folder'}.")
        return path

    def file(self, *names: str) -> Path:
        """The path of a file or folder to be read, by names that the caller knows.

        Raises:
          OutsideError: it lies elsewhere, by a link or by ``..``. A link within the folder is read.

        Example:
          >>> import tempfile
          >>> folder = Path(tempfile.mkdtemp(), "run")
          >>> folder.mkdir()
          >>> (folder / "config.yaml").symlink_to("../notes.yaml")
          >>> Inside(folder).file("config.yaml")
          Traceback (most recent call last):
          ...
          trustclip.support.inside.OutsideError: .../config.yaml leads out of ...
        """
        path = self._root.joinpath(*names)
        if not self.holds(path):
            raise OutsideError(
                f"{path} leads out of {self._root}, to {os.path.realpath(path)}: a page made from "
                "it would hold that file. If it is your own, name it instead of the folder."
            )
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path that begins with the folder ends in it, wherever links lead."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._root))

    def files(self, pattern: str) -> list[Path]:
        """What matches a pattern in the folder, in order of the names; see `file`."""
        found = sorted(self._root.glob(pattern))
        return [self.file(*path.relative_to(self._root).parts) for path in found]


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file, or one that a link leads to: an ``opener`` for `open`.

    Raises:
      OutsideError: it is a folder, a pipe or a device; at a pipe, a reader could wait for ever.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OutsideError(f"{os.fspath(path)} is no regular file.")
    return descriptor


def itself(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file and no link to one: an ``opener`` for `open`.

    Raises:
      OutsideError: it is a link, a folder, a pipe or a device.
    """
    try:
        return regular(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OutsideError(f"{os.fspath(path)} is a link: {_WHY}") from error
        raise


def part_of(path: Path) -> Path:
    """A free name beside a file, to write what will replace the file by a rename."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed process, or a link
    return part


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds a link out of it, at any depth, by an `OutsideError`.

    The folder itself may be reached by a link. Links that stay inside do no harm, and what wandb
    keeps in its own folder, links to its log among it, is neither read nor continued.
    """
    root = Path(os.path.realpath(folder))
    for at, folders, files in os.walk(root):
        if Path(at) == root / "wandb":
            folders.clear()
        for path in (Path(at, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise OutsideError(
                    f"{folder / path.relative_to(root)} is a link to {path.readlink()}, outside of "
                    f"{folder}: {_WHY} If the link is your own, move what it leads to here; to "
                    "keep a run on another disk, link its whole folder, or mount that disk there."
                )


def regular_files(folder: Path, before: str = "") -> dict[str, Path]:
    """Regular files in a folder at any depth, by relative name; links are not followed.

    What is opened comes from here and not from a record, so no name in it can lead outside.
    """
    files: dict[str, Path] = {}
    for at, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(at, name) for name in sorted(names)):
            if stat.S_ISREG(path.lstat().st_mode):
                files[before + path.relative_to(folder).as_posix()] = path
    return files
