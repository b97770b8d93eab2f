"""What of a run directory is whole: its files against the hashes in its checkpoints and summary.

A checkpoint holds, for each file of rows, the SHA-256 of the file so far and a chain with a link
for each checkpoint before it; the summary of a finished run holds them for every file. A changed
row is therefore found, and located between two checkpoints. Nothing is signed: whoever rewrites
the hashes as well is not found.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trustclip.logs.summary import HASHES
from trustclip.logs.writing.hashes import FINAL, digest, missing_files
from trustclip.logs.writing.run import GROWING, LOST
from trustclip.support.inside import regular_files
from trustclip.support.jsonl import read_mapping, scan
from trustclip.train.durable.store import CheckpointError, CheckpointStore
from trustclip.train.durable.store import verify as verify_checkpoint
from trustclip.train.runs.spans import Record, Span, changed_spans

State = Literal["whole", "changed", "missing", "unrecorded"]

#: What the summary records.
_END = "the end of the run"
#: Any of these makes a folder a run directory.
_OF_A_RUN = ("config.yaml", "environment.json", "summary.json", "metrics.jsonl")
_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class FileState:
    """The state of one file, or of one checkpoint."""

    name: str  # relative to the run directory
    state: State  # "unrecorded" where no hash is recorded that it could be compared with
    text: str  # what is changed or missing, and where; or how much is whole


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
          'whole: the 1 file or checkpoint with a recorded hash is as the run wrote it.'
        """
        count = Counter(entry.state for entry in self.checked)
        if not self.whole:
            return f"not whole: {count['changed']} changed, {count['missing']} missing."
        if not count["whole"]:
            return (
                "no hashes recorded: the run was stopped before its first checkpoint, or is of an "
                "earlier release."
            )
        one = count["whole"] == 1
        they = "file or checkpoint with a recorded hash is as the run wrote it"
        several = "files and checkpoints with a recorded hash are as the run wrote them"
        rest = f"; {count['unrecorded']} without one" if count["unrecorded"] else ""
        return f"whole: the {count['whole']} {they if one else several}{rest}."


def verify(folder: Path) -> Verification:
    """Compare a run directory with the hashes that are recorded in it; nothing is changed."""
    if not any(os.path.lexists(folder / name) for name in _OF_A_RUN):
        raise ValueError(f"{str(folder)!r} is not a run directory: it has no config.yaml.")
    comparison = _Comparison(folder)
    entries = [*comparison.entries()]
    if (folder / "sft" / "config.yaml").is_file():
        tuned = verify(folder / "sft")
        entries += [FileState(f"sft/{f.name}", f.state, f.text) for f in tuned.checked]
    return Verification(bool(comparison.summary.get("finished", comparison.summary)), entries)


@dataclass
class _Comparison:
    """One run directory, its files, and what its checkpoints and summary record of them."""

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    #: By name of a file: what checkpoints record of it, the oldest first, then the summary.
    records: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))

    def entries(self) -> Iterator[FileState]:
        self.files = regular_files(self.folder)
        yield from self._checkpoints()
        yield from self._summary()
        # Files that the run has written, or that are recorded; others are a user's own.
        written = {n for n in self.files if n == "config.yaml" or GROWING.fullmatch(n)}
        names = written | self.records.keys()
        for name in sorted(names, key=lambda name: (name.count("/"), name)):
            yield self._file(name)
        yield from self._model()
        yield from self._lost()

    # -- what is recorded --------------------------------------------------------------------------

    def _checkpoints(self) -> Iterator[FileState]:
        store = CheckpointStore(self.folder / "checkpoints")
        for step in store.steps():
            path = store.path(step)
            name = f"checkpoints/{path.name}"
            try:
                verify_checkpoint(path)
                shared = path / "shared.json"
                content = json.loads(shared.read_text("utf-8")) if shared.exists() else {}
                self._take(content.get("cursor", {}), f"the checkpoint of step {step}")
            except CheckpointError as error:
                yield FileState(name, "changed", str(error).removeprefix(f"{path}: "))
            except _MALFORMED as error:
                yield FileState(name, "changed", f"shared.json cannot be read: {error!r}.")
            else:
                yield FileState(name, "whole", "as its manifest says")
        stock = self.folder / "cursors.jsonl"  # of a trainer with checkpoints of its own
        for line in scan(stock) if stock.is_file() else ():
            try:
                row = line.row or {}
                self._take(row["cursor"], f"the checkpoint of step {row['step']}")
            except _MALFORMED:
                yield FileState(stock.name, "changed", f"line {line.number} cannot be read")

    def _summary(self) -> Iterator[FileState]:
        name = "summary.json"
        if not os.path.lexists(self.folder / name):
            return
        try:
            self.summary = dict(read_mapping(self.folder / name))
            if not self.summary:
                raise ValueError("it is empty, or no regular file")
            hashes = self.summary.get(HASHES)
            if hashes is None:
                finished = self.summary.get("finished", True)
                text = "no hashes recorded" if finished else "the run is not finished"
                yield FileState(name, "unrecorded", text)
                return
            self._take({k: v for k, v in hashes.items() if k != name}, _END)
            same = digest(self.summary) == hashes[name]["sha256"]
        except _MALFORMED as error:
            yield FileState(name, "changed", f"cannot be read: {error}")
        else:
            state, text = ("whole", "") if same else ("changed", "not as the run wrote it")
            yield FileState(name, state, text)

    def _take(self, cursor: Mapping[str, Any], source: str) -> None:
        records = {str(name): Record.of(extent, source) for name, extent in cursor.items()}
        for name, record in records.items():
            self.records[name].append(record)

    # -- what is there -----------------------------------------------------------------------------

    def _file(self, name: str) -> FileState:
        path, records = self.files.get(name), self.records.get(name, [])
        if path is None:
            there = os.path.lexists(self.folder / name)
            return FileState(name, "missing", "no regular file" if there else "not there")
        if not records:
            return self._unrecorded(name, path)
        try:
            spans, size = changed_spans(path, records), path.stat().st_size
        except _MALFORMED as error:
            return FileState(name, "changed", f"its record cannot be read: {error}")
        last = max(record.bytes for record in records)
        if size < last:
            where = f", {spans[0].text(path)}" if spans else ""
            return FileState(name, "missing", f"{size} bytes are left of {last}{where}")
        if spans:
            return FileState(name, "changed", "; ".join(span.text(path) for span in spans))
        if size > last and records[-1].source == _END:
            more = Span(last, size, _END, "").text(path)
            return FileState(name, "changed", f"{more}: added")
        if all(record.sha256 is None for record in records):
            return FileState(name, "unrecorded", "only its size is recorded")
        newer = f"{size - last} bytes are newer than the last checkpoint" if size > last else ""
        return FileState(name, "whole", newer)

    def _unrecorded(self, name: str, path: Path) -> FileState:
        if HASHES in self.summary and name != "config.yaml":
            return FileState(name, "changed", "added: the finished run has no such file")
        lines = scan(path) if path.suffix == ".jsonl" else ()
        bad = [line.number for line in lines if line.row is None and not line.torn]
        if bad:
            return FileState(name, "changed", f"line {bad[0]} is no JSON object")
        return FileState(name, "unrecorded", "no hash recorded")

    def _model(self) -> Iterator[FileState]:
        """The model of a finished run without hashes, and settings that are gone."""
        if "config.yaml" not in self.files and "config.yaml" not in self.records:
            yield FileState("config.yaml", "missing", "not there")
        trained = self.summary.get("finished") and HASHES not in self.summary
        if trained and (self.folder / "checkpoints").exists():
            gone = missing_files(self.folder, self.summary)
            for name in gone:
                yield FileState(name, "missing", "not there")
            if not gone:
                yield FileState(FINAL, "unrecorded", "no hash recorded")

    def _lost(self) -> Iterator[FileState]:
        """What the run itself has noticed to be lost."""
        metrics = self.files.get("metrics.jsonl")
        for line in scan(metrics) if metrics else ():
            if line.row is not None and line.row.get("notice") == LOST:
                text = f"noticed after update {line.row.get('step')}: {line.row.get('text')}"
                yield FileState("rows", "missing", text)
