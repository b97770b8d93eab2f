"""Copies of checkpoints in a folder elsewhere: ``s3://...``, or whatever fsspec reaches.

A copy is complete when its manifest is there, which is sent last; nothing without one is ever read.
Each checkpoint is sent with the run's append-only files up to it, so that a machine that has
nothing else continues from there.
"""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trustclip.support.flush import flush, flush_tree
from trustclip.support.inside import Inside, check_url
from trustclip.train.durable import states
from trustclip.train.durable.store import MANIFEST, CheckpointError, CheckpointStore, verify

_JOURNAL = "journal"
_BLOCK = 2**22

#: Protocols with real folders. Elsewhere, creating a folder could create a bucket.
_FOLDERS = {"file", "local", "memory", "sftp", "ssh", "smb", "ftp", "hdfs"}


class Mirror:
    """The copies of one run's checkpoints.

    Args:
      url: of their folder.
      rows: folder of the append-only files that a checkpoint's cursor names; None for none.
      place: their paths by these names, and a ValueError for others; any in ``rows`` where None.

    Raises:
      CheckpointError: by every method: the place cannot be used; the message says why.
    """

    def __init__(
        self, url: str, rows: Path | None = None, place: Callable[[str], Path] | None = None
    ) -> None:
        import fsspec

        check_url(url)
        self.url, self._rows = url.rstrip("/"), rows
        self._place = place or Inside(rows or Path()).path
        with self._explained("open"):
            self._files, self._root = fsspec.core.url_to_fs(self.url)

    def send(self, checkpoint: Path, keep: int | None = None) -> None:
        """Copy a checkpoint, its manifest last; then remove the oldest over ``keep``."""
        with self._explained("write to"):
            target = f"{self._root}/{checkpoint.name}"
            self._remove(target)
            for file in sorted(checkpoint.rglob("*")):
                if file.is_file() and file.name != MANIFEST:
                    self._put(file, f"{target}/{file.relative_to(checkpoint).as_posix()}")
            for name, extent in self._cursor(checkpoint).items():
                size = extent if isinstance(extent, int) else extent["bytes"]
                self._put(self._place(name), f"{target}/{_JOURNAL}/{name}", size)
            self._put(checkpoint / MANIFEST, f"{target}/{MANIFEST}")
        with contextlib.suppress(CheckpointError), self._explained("clean"):
            steps = self._steps()
            later = [name for name in steps if name > checkpoint.name]
            for name in [*(steps[:-keep] if keep and not later else []), *later]:
                self._remove(f"{self._root}/{name}")

    def fetch(self, store: CheckpointStore) -> Path | None:
        """Bring the newest complete checkpoint, and rows up to it, to a store; None without one."""
        with self._explained("read"):
            names = self._steps()
        for name in reversed(names):
            step = int(name.removeprefix("step-"))
            part = store.begin(step)
            try:
                with self._explained("read"):
                    self._get(name, part)
                journal = part.with_name(f"{part.name}-{_JOURNAL}")
                if (part / _JOURNAL).exists():
                    shutil.rmtree(journal, ignore_errors=True)
                    (part / _JOURNAL).rename(journal)
                final = store.path(step)
                part.rename(final)
                verify(final)
            except CheckpointError as error:
                shutil.rmtree(store.path(step), ignore_errors=True)
                warnings.warn(f"checkpoint of {self.url} skipped: {error}", stacklevel=2)
                continue
            finally:
                store.abort(step)
            self._restore(final, journal)
            origin = json.loads((final / MANIFEST).read_text(encoding="utf-8"))["origin"]
            store.begin_as(origin)
            flush_tree(store.folder)
            return final
        return None

    def _restore(self, checkpoint: Path, journal: Path) -> None:
        source = Inside(journal)
        targets = {name: self._place(name) for name in self._cursor(checkpoint)}
        for name, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path(name), target)
            flush(target)
        shutil.rmtree(journal, ignore_errors=True)

    def _cursor(self, checkpoint: Path) -> Mapping[str, Any]:
        return {} if self._rows is None else states.shared(checkpoint)["cursor"]

    def _steps(self) -> list[str]:
        """Names of the complete checkpoints, oldest first."""
        if not self._files.exists(self._root):
            return []
        self._files.invalidate_cache()
        names = [path.rstrip("/").rpartition("/")[2] for path in self._files.ls(self._root, False)]
        steps = [name for name in names if name.removeprefix("step-").isdecimal()]
        return sorted(
            name for name in steps if self._files.exists(f"{self._root}/{name}/{MANIFEST}")
        )

    def _put(self, file: Path, target: str, size: int | None = None) -> None:
        left = file.stat().st_size if size is None else size
        if self.url.partition("://")[0] in _FOLDERS:
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        with file.open("rb") as source, self._files.open(target, "wb") as copy:
            while left and (block := source.read(min(_BLOCK, left))):
                copy.write(block)
                left -= len(block)

    def _get(self, name: str, folder: Path) -> None:
        source = f"{self._root}/{name}"
        for path in self._files.find(source):
            target = Inside(folder).path(path.rpartition(f"/{name}/")[2])
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._files.open(path, "rb") as stored, target.open("wb") as file:
                shutil.copyfileobj(stored, file, _BLOCK)

    def _remove(self, target: str) -> None:
        """Remove a copy, its manifest first: a half-removed copy must not look complete."""
        if self._files.exists(f"{target}/{MANIFEST}"):
            self._files.rm_file(f"{target}/{MANIFEST}")
        if self._files.exists(target):
            self._files.rm(target, recursive=True)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise the errors of any file system as one sentence."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).rstrip(".")
            raise CheckpointError(f"cannot {what} {self.url}: {reason}.") from error
