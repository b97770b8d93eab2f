"""What of a run directory is whole: its files against the hashes in its checkpoints and summary.

A checkpoint holds the SHA-256 of each file of rows so far; the summary of a finished run holds that
of every file. Nothing is signed: whoever rewrites the hashes as well is not found.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trustclip.logs.forms import HASHES
from trustclip.logs.writing.extents import Extents
from trustclip.logs.writing.hashes import digest
from trustclip.logs.writing.run import GROWING, LOST
from trustclip.support.flush import Listed
from trustclip.support.inside import Inside, regular_files
from trustclip.support.jsonl import read_mapping, scan
from trustclip.support.schemas import read_json
from trustclip.train.durable.store import CheckpointError, CheckpointStore
from trustclip.train.durable.store import verify as verify_checkpoint

State = Literal["whole", "changed", "missing", "unrecorded"]

#: Any of these makes a folder a run directory.
_OF_A_RUN = ("config.yaml", "environment.json", "summary.json", "metrics.jsonl")
_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class FileState:
    """The state of one file, or of one checkpoint."""

    name: str  # relative to the run directory
    state: State  # "unrecorded" where no hash is recorded that it could be compared with
    text: str  # what is changed or missing; or how much is whole


@dataclass(frozen=True)
class Verification:
    """What `verify` has found."""

    finished: bool
    checked: list[FileState]

    @property
    def whole(self) -> bool:
        """Whether nothing is changed or missing."""
        return not any(entry.state in ("changed", "missing") for entry in self.checked)

    @property
    def conclusion(self) -> str:
        """One sentence.

        Example:
          >>> Verification(True, [FileState("metrics.jsonl", "whole", "")]).conclusion
          'whole: 1 file or checkpoint is as the run wrote it.'
        """
        count = Counter(entry.state for entry in self.checked)
        if not self.whole:
            return f"not whole: {count['changed']} changed, {count['missing']} missing."
        if not count["whole"]:
            return (
                "unrecorded: it has no hashes, because it was stopped before its first checkpoint."
            )
        one = count["whole"] == 1
        these = "file or checkpoint is" if one else "files and checkpoints are"
        rest = f", {count['unrecorded']} have no recorded hash" if count["unrecorded"] else ""
        return f"whole: {count['whole']} {these} as the run wrote {'it' if one else 'them'}{rest}."


def verify(folder: Path) -> Verification:
    """Compare a run directory with the hashes that are recorded in it; nothing is changed."""
    if not any(os.path.lexists(folder / name) for name in _OF_A_RUN):
        raise ValueError(f"{str(folder)!r} is not a run directory: it has no config.yaml.")
    comparison = _Comparison(folder, regular_files(folder))
    entries = [*comparison.entries()]
    tuned_in = Inside(folder).file("sft")
    if (tuned_in / "config.yaml").is_file():
        tuned = verify(tuned_in)
        entries += [FileState(f"sft/{f.name}", f.state, f.text) for f in tuned.checked]
    return Verification(bool(comparison.summary.get("finished", comparison.summary)), entries)


@dataclass
class _Comparison:
    """One run directory, its files, and what its checkpoints and summary record of them."""

    folder: Path
    files: dict[str, Path]
    summary: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Listed] = field(default_factory=dict)  # the largest of each file

    def entries(self) -> Iterator[FileState]:
        yield from self._checkpoints()
        yield from self._summary()
        # Files that the run has written, or that are recorded; others are a user's own.
        written = {n for n in self.files if n == "config.yaml" or GROWING.fullmatch(n)}
        names = {"config.yaml"} | written | self.records.keys()
        for name in sorted(names, key=lambda name: (name.count("/"), name)):
            yield self._file(name)
        yield from self._lost()

    def _checkpoints(self) -> Iterator[FileState]:
        store = CheckpointStore(self.folder / "checkpoints")
        for step in store.steps():
            path = store.path(step)
            name = f"checkpoints/{path.name}"
            try:
                verify_checkpoint(path)
                shared = path / "shared.json"
                content = read_json(shared) if shared.exists() else {}
                self._take(content.get("cursor", {}))
            except CheckpointError as error:
                yield FileState(name, "changed", str(error).removeprefix(f"{path}: "))
            except _MALFORMED as error:
                yield FileState(name, "changed", f"shared.json cannot be read: {error!r}.")
            else:
                yield FileState(name, "whole", "as its manifest says")
        # Of a trainer with checkpoints of its own.
        stock = Inside(self.folder).file("cursors.jsonl")
        for line in scan(stock) if stock.is_file() else ():
            try:
                self._take((line.row or {})["cursor"])
            except _MALFORMED:
                yield FileState(stock.name, "changed", f"line {line.number} cannot be read")

    def _summary(self) -> Iterator[FileState]:
        name = "summary.json"
        if not os.path.lexists(self.folder / name):
            return
        try:
            self.summary = dict(read_mapping(Inside(self.folder).file(name)))
            if not self.summary:
                raise ValueError("it is empty, or no regular file")
            hashes = self.summary.get(HASHES)
            if hashes is None:
                finished = self.summary.get("finished", True)
                text = "no hash is recorded" if finished else "the run is not finished"
                yield FileState(name, "unrecorded", text)
                return
            same = digest(self.summary) == hashes[name]["sha256"]
            if same:  # else its hashes are not those of the run
                self._take({k: v for k, v in hashes.items() if k != name})
            else:
                del self.summary[HASHES]
        except _MALFORMED as error:
            yield FileState(name, "changed", f"cannot be read: {error}")
        else:
            state, text = ("whole", "") if same else ("changed", "not as the run wrote it")
            yield FileState(name, state, text)

    def _take(self, cursor: Mapping[str, Any]) -> None:
        for name, extent in cursor.items():
            new: Listed = {"bytes": int(extent["bytes"]), "sha256": str(extent["sha256"])}
            if new["bytes"] >= self.records.get(name, new)["bytes"]:
                self.records[name] = new

    def _file(self, name: str) -> FileState:
        path, extent = self.files.get(name), self.records.get(name)
        if path is None:
            there = os.path.lexists(self.folder / name)
            return FileState(name, "missing", "no regular file" if there else "not there")
        if extent is None:
            if self.summary.get(HASHES) and name != "config.yaml":
                return FileState(name, "changed", "added: the finished run has no such file")
            return FileState(name, "unrecorded", "no hash is recorded")
        last, size = extent["bytes"], path.stat().st_size
        if size < last:
            return FileState(name, "missing", f"{size} bytes are left of {last}")
        try:
            Extents().restore(path, extent, cut=False)
        except ValueError:
            return FileState(name, "changed", "other bytes than the run wrote")
        if size > last and self.summary.get(HASHES):
            return FileState(name, "changed", f"{size - last} bytes were added after the end")
        newer = f"{size - last} bytes are newer than the last checkpoint" if size > last else ""
        return FileState(name, "whole", newer)

    def _lost(self) -> Iterator[FileState]:
        """What the run itself has noticed to be lost."""
        metrics = self.files.get("metrics.jsonl")
        for line in scan(metrics) if metrics else ():
            if line.row is not None and line.row.get("notice") == LOST:
                text = f"noticed after update {line.row.get('step')}: {line.row.get('text')}"
                yield FileState("rows", "missing", text)
