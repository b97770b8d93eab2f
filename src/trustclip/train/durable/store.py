"""A folder of checkpoints that survives kills, full disks and flipped bits.

A checkpoint is a folder ``step-000016`` of plain files, among them ``manifest.json`` with the size
and SHA-256 of each of the others. It is written under another name, flushed to the disk and then
renamed: it is there whole or not at all. Files are compared with the manifest before they are read;
only regular files inside the folder are ever opened, and none is a pickle.

In one file because writing, listing and verifying are one format: each is understood only from the
other two.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trustclip.support.flush import Listed, flush, flush_way, manifest_entries, sha256_of
from trustclip.support.inside import itself
from trustclip.support.names import TrainingError

#: Version of the format; a checkpoint with another one is refused.
SCHEMA = 1

MANIFEST = "manifest.json"
ORIGIN = "start.json"

_STEP = re.compile(r"step-(\d{6,12})")
_WRITING, _REMOVING = ".writing-", ".removing-"
_MAX_JSON = 1 << 22  # bytes; a manifest is a few kilobytes

#: Errors of reading a file or folder that is not one of our checkpoints.
_UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EFBIG: "file size limit reached",
    errno.EROFS: "read-only file system",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
}


class CheckpointError(OSError):
    """A checkpoint cannot be written, or no existing one can be used."""


class NonFiniteError(TrainingError):
    """Weights or optimizer states hold NaN or infinite values; no checkpoint of them is written."""


@contextlib.contextmanager
def writing_to(path: Path, left: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Raise file-system errors as a `CheckpointError` that names ``path`` and a reason."""
    from safetensors import SafetensorError

    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        code = getattr(error, "errno", None)
        if match := re.search(r"os error (\d+)", str(error)):  # libraries in Rust: only text
            code = int(match[1])
        if code is None and not isinstance(error, OSError | SafetensorError):
            raise
        reason = _REASONS.get(code, "error") if code is not None else "error"
        raise CheckpointError(f"{reason} while writing {path}: {error}{left()}.") from error


class CheckpointStore:
    """The checkpoints of one run, in one folder; other files there are left alone.

    The newest ``keep`` of them are kept; None keeps all.

    Example:
      >>> import tempfile
      >>> store = CheckpointStore(Path(tempfile.mkdtemp()), keep=1)
      >>> for step in (8, 16):
      ...     _ = (store.begin(step) / "state.json").write_text("{}")
      ...     _ = store.commit(step)
      >>> store.newest().name, store.steps()
      ('step-000016', [16])
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"the number of checkpoints to keep must be at least 1, got {keep}.")
        self.folder, self.keep = folder, keep

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.folder / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps of all checkpoints, valid or not, ascending."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir())
        steps = (int(match[1]) for name in names if (match := _STEP.fullmatch(name)))
        return sorted(step for step in steps if os.path.lexists(self.path(step)))

    @property
    def begun(self) -> bool:
        """Whether a run has started here, even if it has no checkpoint yet."""
        return (self.folder / ORIGIN).exists() or bool(self.steps())

    def newest(self) -> Path | None:
        """The newest valid checkpoint; None if the folder holds no checkpoint at all.

        Checkpoints that cannot be used are skipped with a warning.

        Raises:
          CheckpointError: there are checkpoints, and none is valid.
        """
        damaged: list[str] = []
        run = (self._origin() or {}).get("run")
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                verify(path, run)
            except CheckpointError as error:
                damaged.append(str(error))
                warnings.warn(f"a checkpoint was skipped: {error}", stacklevel=2)
            else:
                return path
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used: {' '.join(damaged)} "
                "Move this folder away to train from the start."
            )
        return None

    def origin(self, cursor: Callable[[], dict[str, int]]) -> dict[str, int]:
        """Sizes of the run's append-only files when it first started.

        On the very first start the cursor supplies them, and they are stored.
        """
        path = self.folder / ORIGIN
        with self.explained(path):
            origin = self._origin()
            if origin is None and path.exists():
                raise CheckpointError(
                    f"{path} is damaged, and there is no checkpoint to restore it from. Move "
                    f"{self.folder} away to train from the start."
                )
            if origin is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                flush_way(self.folder)
                origin = {"run": secrets.token_hex(8), "cursor": cursor()}
                part = self.folder / (_WRITING + ORIGIN)
                part.unlink(missing_ok=True)
                with part.open("x", encoding="utf-8") as file:
                    file.write(json.dumps(origin))
                flush(part)
                part.rename(path)
                flush(self.folder)
            return origin["cursor"]

    def _origin(self) -> dict[str, Any] | None:
        """Name and first cursor of the run; every checkpoint holds a copy of the file ORIGIN."""
        with contextlib.suppress(*_UNUSABLE):
            origin = _read_json(self.folder / ORIGIN)
            return {"run": origin["run"], "cursor": origin["cursor"]}
        for step in reversed(self.steps()):
            with contextlib.suppress(*_UNUSABLE):
                return _manifest(self.path(step))["origin"]
        return None

    def clean(self) -> None:
        """Remove the remains of interrupted writes and removals."""
        leftovers = [*self.folder.glob(_WRITING + "*"), *self.folder.glob(_REMOVING + "*")]
        with contextlib.suppress(OSError):
            if leftovers:  # a name not yet on the disk would come back with half of its content
                flush(self.folder)
            for path in leftovers:
                path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)

    def begin(self, step: int) -> Path:
        """Create the folder to write a step's checkpoint into, for `commit` or `abort`."""
        folder = self._part(step)
        with self.explained(self.path(step)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        return folder

    def commit(self, step: int, written: Mapping[str, Listed] | None = None) -> Path:
        """Make the written folder the checkpoint of its step, then delete those over `keep`."""
        part, final = self._part(step), self.path(step)
        with self.explained(self.path(step)):
            files = _files(part)
            manifest = {"schema": SCHEMA, "step": step, "origin": self._origin()}
            # Files that the ranks have listed must still have the size they wrote; list the others.
            entries = dict(written or {})
            _compare({name: path for name, path in files.items() if name in entries}, entries)
            manifest["files"] = entries | manifest_entries(
                part, [path for name, path in files.items() if name not in entries]
            )
            # Contents are on the disk; now manifest, folders, and only then the name: a kill in
            # between leaves a folder that `clean` removes, never a checkpoint that is half there.
            text = json.dumps(manifest, indent=1, sort_keys=True)
            (part / MANIFEST).write_text(text + "\n", encoding="utf-8")
            same_mode(part / MANIFEST, files.values())
            flush(part / MANIFEST)
            for folder in sorted({part, *(path.parent for path in files.values())}):
                flush(folder)
            if os.path.lexists(final):
                self._remove(final)
            part.rename(final)
            flush(self.folder)
        self._prune(step)
        return final

    def abort(self, step: int) -> None:
        """Remove a partly written checkpoint."""
        shutil.rmtree(self._part(step), ignore_errors=True)

    def explained(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Raise file-system errors as a `CheckpointError` that names the newest checkpoint."""
        return writing_to(path, lambda: f"; {self.left()}")

    def _part(self, step: int) -> Path:
        return self.folder / f"{_WRITING}{self.path(step).name}"

    def _prune(self, committed: int) -> None:
        """Delete checkpoints that are damaged, over `keep`, or of a later step (skipped)."""
        count = 1
        for step in sorted(self.steps(), reverse=True):
            path = self.path(step)
            if step == committed or (step < committed and self.keep is None):
                continue
            if step < committed and count < (self.keep or 0):
                whole = _whole(path)
                count += bool(whole)
                if whole is not False:
                    continue
            try:
                self._remove(path)
            except OSError as error:
                warnings.warn(f"cannot remove the old checkpoint {path}: {error}", stacklevel=2)

    def _remove(self, path: Path) -> None:
        # Renamed first: a half-removed checkpoint must not look like a damaged one.
        hidden = path.with_name(f"{_REMOVING}{path.name}-{secrets.token_hex(4)}")
        path.rename(hidden)
        flush(self.folder)
        if hidden.is_symlink() or not hidden.is_dir():
            hidden.unlink()
        else:
            shutil.rmtree(hidden)

    def left(self) -> str:
        """The newest checkpoint, in words; files that are read back later may still be damaged."""
        whole = [self.path(step) for step in self.steps() if _whole(self.path(step))]
        return f"the newest checkpoint is {whole[-1]}" if whole else "there is no checkpoint"


def verify(path: Path, run: str | None = None) -> None:
    """Compare a checkpoint with its manifest, byte for byte, or raise a CheckpointError."""
    try:
        if path.is_symlink() or not path.is_dir():
            raise ValueError("it is not a folder.")
        manifest = _manifest(path)
        if run is not None and manifest["origin"]["run"] != run:
            raise ValueError("it belongs to another run.")
        files = _files(path)
        _compare(files, manifest["files"])
        for name, file in files.items():
            if sha256_of(file) != manifest["files"][name]["sha256"]:
                raise ValueError(f"{name} is damaged: its SHA-256 differs from the manifest's.")
    except _UNUSABLE as error:
        explained = isinstance(error, OSError | ValueError)
        reason = error if explained else f"its manifest is malformed ({error!r})."
        raise CheckpointError(f"{path}: {reason}") from error


def _whole(path: Path) -> bool | None:
    """Whether all files of a checkpoint are there with the right size; `verify` reads them.

    None where its manifest cannot be read now: it may be whole all the same.
    """
    try:
        _compare(_files(path), _manifest(path)["files"])
    except _UNUSABLE as error:
        gone = not isinstance(error, OSError) or isinstance(error, FileNotFoundError)
        return False if gone else None
    return True


def _manifest(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path / MANIFEST):
        raise ValueError(
            f"it has no {MANIFEST}: it is unfinished, or not a checkpoint of trustclip."
        )
    manifest = _read_json(path / MANIFEST)
    if manifest["schema"] != SCHEMA:
        raise ValueError(
            f"its format version is {manifest['schema']!r}; this program reads version {SCHEMA}."
        )
    if path.name != f"step-{manifest['step']:06d}":
        raise ValueError(f"its manifest belongs to step {manifest['step']}.")
    return manifest


def _compare(files: dict[str, Path], listed: dict[str, Any]) -> None:
    for name in sorted(listed.keys() - files.keys()):
        raise ValueError(f"{name} is missing.")
    for name in sorted(files.keys() - listed.keys()):
        raise ValueError(f"{name} is not in its manifest.")
    for name, file in files.items():
        size = file.stat().st_size
        if size != listed[name]["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {listed[name]['bytes']}.")


def _files(folder: Path) -> dict[str, Path]:
    """Regular files in a folder except its manifest, by relative name; links are not followed.

    What is opened comes from here and not from the manifest, so no name in it can lead outside.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            files[path.relative_to(folder).as_posix()] = path
        elif not stat.S_ISDIR(mode):
            raise ValueError(f"{path.relative_to(folder)} is neither a regular file nor a folder.")
    files.pop(MANIFEST, None)
    return files


def _read_json(path: Path) -> Any:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a regular file.")
    if path.stat().st_size > _MAX_JSON:
        raise ValueError(f"{path.name} is larger than a manifest can be.")
    try:
        with open(path, encoding="utf-8", opener=itself) as file:
            return json.loads(file.read())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}.") from error


def same_mode(model: Path, files: Iterable[Path]) -> None:
    """Give files the permissions of ``model``: safetensors writes for the owner alone."""
    mode = stat.S_IMODE(model.stat().st_mode)
    for path in files:
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
