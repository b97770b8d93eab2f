"""A run directory as it is written: everything a run is and did, readable without this program.

``config.yaml`` (settings, all of them), ``marks.json`` (on which of them no result depends),
``environment.json``, ``metrics.jsonl`` (a line per logged step), ``samples.jsonl``, one of each
rank (a line per completion), ``gates.jsonl`` (a line per update: gated share of its completions),
``tokens/`` (a file per recorded update: tokens of some of its completions), ``problems.jsonl``,
``summary.json`` (the outcome). Lines are appended and flushed as they come: what was computed is on
disk. Secrets (tokens, passwords, keys) are replaced before anything is written.

In one file because what is appended, measured, cut back and summarised are the same files: each is
understood only from the others.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml

from trustclip.logs.forms import HASHES, SUMMARY, read_as
from trustclip.logs.identity import MARKS, Marks, essential, flat
from trustclip.logs.samples import SHARD, shards
from trustclip.logs.tokens import TOKENS, UPDATE, TokenRow, write_tokens
from trustclip.logs.writing.environment import environment, versions
from trustclip.logs.writing.extension import Extension, extension, unchangeable
from trustclip.logs.writing.extents import Cursor, Extents
from trustclip.logs.writing.hashes import with_hashes
from trustclip.support.flush import flush
from trustclip.support.inside import Inside, OutsideError, refuse_links
from trustclip.support.jsonl import (
    append_jsonl,
    extend_jsonl,
    plain,
    read_jsonl,
    read_mapping,
    scan,
    write_json,
    write_text,
)
from trustclip.support.lock import LOCK, rank
from trustclip.support.secrets import redact

#: A line for each checkpoint that the trainer writes by itself: the cursor of that moment.
CURSORS = "cursors.jsonl"
#: A line for each time that the run was given more updates.
EXTENSIONS = "extensions.jsonl"
#: Hashes of what the settings name, and what of it had changed when the run was continued.
INPUTS = "inputs.json"
#: What a run directory holds before anything was computed.
_WHAT = {"config.yaml", MARKS, INPUTS, "problems.jsonl", "quarantine.jsonl"}
UNBEGUN = {LOCK, "environment.json", *_WHAT}
#: Names that a cursor may hold: of the files that grow.
GROWING = re.compile(rf"(gates|metrics|problems)\.jsonl|{SHARD.pattern}|{TOKENS}/{UPDATE.pattern}")
#: Name of the notice that files of rows were deleted, cut or replaced while the run went on.
LOST = "records_lost"


class RunWriter:
    """Writes the folder of one run, created with its settings and environment in it.

    Under several ranks the first one creates the folder and writes the records of all; the others
    append only the completions that they have sampled themselves.
    """

    #: What a message calls another place to write to.
    elsewhere: ClassVar[str] = "folder"

    def __init__(self, path: Path, command: str, settings: Any, marks: Marks | None = None) -> None:
        self._open(path)
        if (path / "config.yaml").exists() and rank() == 0:
            raise ValueError(f"{path} already holds a run; choose another {self.elsewhere}.")
        if rank() == 0:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "environment.json", environment())
            self._describe(*described(command, settings, marks))

    @classmethod
    def resumed(cls, path: Path, command: str, settings: Any, marks: Marks | None = None) -> Self:
        """The run that ``path`` holds, to be continued, or a new one where there is none.

        A ValueError says what another command or other settings have begun there.
        """
        if not (path / "config.yaml").exists() or rank() != 0:
            return cls(path, command, settings, marks)
        flush(path)  # what is read here is believed: a killed process may not have flushed its name
        config, marks = described(command, settings, marks)
        current = flat(essential(config, marks))
        stored = flat(essential(whole(path / "config.yaml"), marks))
        longer = extension(marks.extends, stored, current)
        for key in {**current, **stored}:
            same = key in stored and key in current and stored[key] == current[key]
            if not same and not (longer and key == marks.extends):
                if {entry.name for entry in path.iterdir()} <= UNBEGUN:
                    for name in _WHAT:  # it was refused before it did anything
                        (path / name).unlink(missing_ok=True)
                    return cls(path, command, settings, marks)
                now = current.get(key)
                raise ValueError(unchangeable(path, marks, key, stored, now, cls.elsewhere))
        run = cls.__new__(cls)
        run._open(path)
        before = run.summary  # of the parts of a run, the times add up
        run._started -= before.get("seconds", 0.0)
        run._cpu -= before.get("cpu_seconds", 0.0)
        if longer is not None:
            run._extend(longer, config, marks)
        return run

    def _describe(self, config: Mapping[str, Any], marks: Marks) -> None:
        write_json(self.path / MARKS, vars(marks))
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        write_text(self.path / "config.yaml", text)  # last: with it, there is a run

    def _extend(self, longer: Extension, config: Mapping[str, Any], marks: Marks) -> None:
        """Record that the run gets more updates; it is not finished any more."""
        summary = self.summary
        if summary.get("finished"):
            self.refuse_without_checkpoint()
        append_jsonl(self.path / EXTENSIONS, [vars(longer)])
        self._describe(config, marks)
        if summary:
            self._reopen(summary)
        self.extended = longer.text

    def refuse_without_checkpoint(self) -> None:
        """Refuse more updates for a finished run that no checkpoint continues."""
        if not (self.path / CURSORS).exists():
            raise ValueError(
                f"{self.path} is finished, and there is no checkpoint to continue it from; choose "
                f"another {self.elsewhere}."
            )

    def _open(self, path: Path) -> None:
        if rank() == 0:
            refuse_links(path)
        self.path = path
        self._started, self._cpu = time.monotonic(), time.process_time()
        self._extents, self._cut = Extents(), False
        self._step = 0  # of the newest row
        self.extended = ""

    @property
    def leads(self) -> bool:
        """Whether this process writes what belongs to all ranks."""
        return rank() == 0

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of ``summary.json``; empty before `summarize`."""
        path = self.path / "summary.json"
        return whole(path, partial(read_as, SUMMARY)) if path.exists() else {}

    def _reopen(self, summary: Mapping[str, Any]) -> None:
        """Write down that the run is not finished any more."""
        kept = {key: value for key, value in summary.items() if key != HASHES}
        write_json(self.path / "summary.json", {**kept, "finished": False})

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        if self.leads:
            self._append(self.path / "metrics.jsonl", [row])
            self._step = row.get("step", self._step)

    def logged(self) -> list[dict[str, Any]]:
        """Readable rows of ``metrics.jsonl`` from which training goes on, after `rewind`."""
        if not self._cut:
            raise RuntimeError("rows are read back after `rewind`, which may cut some of them off.")
        path = self.path / "metrics.jsonl"
        lines = scan(path) if path.exists() else ()
        return [line.row for line in lines if line.row is not None]

    def _append(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a file; say and record what others have done to the files meanwhile."""
        self._look()
        append_jsonl(path, rows)
        self._extents.wrote(path)

    def _look(self) -> None:
        """Say and record which files others have deleted, cut or replaced since they were written.

        The run goes on: what it still computes is worth more than what is gone.
        """
        for path, what in self._extents.changed().items():
            text = (
                f"{path} was {what}, while the run went on: its earlier rows are no longer those "
                "that the run wrote. What follows is written after them."
            )
            warnings.warn(text, stacklevel=4)
            self.notice(self._step, LOST, text)

    def notice(self, step: int, name: str, text: str) -> None:
        """Append the warning of a guard to ``metrics.jsonl``."""
        self.log({"stage": "notice", "step": step, "notice": name, "text": text})

    def sample(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to ``samples.jsonl``, of which every further rank has its own."""
        own = f"-rank{rank()}" if rank() else ""
        self._append(self.path / f"samples{own}.jsonl", rows)

    def gates(self, row: Mapping[str, Any]) -> None:
        """Append the gated shares of one update's completions to ``gates.jsonl``."""
        self._append(self.path / "gates.jsonl", [row])

    def tokens(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the recorded tokens of one update, in the columns of `trustclip.logs.tokens`."""
        folder, own = self.path / TOKENS, f"-rank{rank()}" if rank() else ""
        folder.mkdir(exist_ok=True)
        path = folder / f"update-{step:06d}{own}.parquet"
        write_tokens(path, [TokenRow.of(row) for row in rows])

    def pose(self, problems: Iterable[Mapping[str, Any]], task: str | None = None) -> None:
        """Record problems (``id``, ``problem``, ``answer``), each once, in ``problems.jsonl``.

        One that has changed is recorded again, after the first.
        """
        if not self.leads:
            return
        path = self.path / "problems.jsonl"
        known = {(r["task"], r["id"]): r for r in read_jsonl(path)} if path.exists() else {}
        rows = (
            {"id": p["id"], "task": task, "problem": p["problem"], "answer": p["answer"]}
            for p in problems
        )
        new = [row for row in rows if known.get((task, row["id"])) != row]
        if new:
            self._look()
            extend_jsonl(path, new)
            self._extents.wrote(path, replaced=True)

    def cursor(self) -> dict[str, Any]:
        """Extents of the files that grow, once they are safely on disk."""
        self._look()
        problems = self.path / "problems.jsonl"
        measured = [*self._row_files(), *([problems] if problems.exists() else [])]
        extents = {self._name(path): self._extents.of(path) for path in measured}
        for path in measured:
            self._extents.wrote(path)
        for folder in sorted({path.parent for path in measured} | {self.path}):
            flush(folder)
        return extents

    def rewind(self, cursor: Cursor) -> None:
        """Cut the files that grow back to a `cursor`; what came after will be computed again.

        Problems stay: each is recorded once, whenever it is first used.

        Raises:
          ValueError: a file has lost or changed lines that will not come again, or the cursor
            names a file that no run lets grow.
        """
        extents = {self.place(name): extent for name, extent in cursor.items()}
        for path, extent in extents.items():  # where one is refused, none is cut
            self._extents.restore(path, extent, cut=False)
        younger = [path for path in self._row_files() if self._name(path) not in cursor]
        for path in younger:
            self._extents.forget(path)
            path.unlink()
        for folder in sorted({path.parent for path in younger}):
            flush(folder)
        for path, extent in extents.items():
            self._extents.restore(path, extent, cut=path.name != "problems.jsonl")
        self._cut = True

    def place(self, name: str) -> Path:
        """The path of a file that grows, by its name in a `cursor`."""
        if not GROWING.fullmatch(str(name)):
            raise OutsideError(
                f"the checkpoint of {self.path} names {name!r}, which is none of the files that a "
                "run appends to: it is damaged, or not to be trusted."
            )
        return Inside(self.path).path(name)

    def _row_files(self) -> list[Path]:
        """Files of rows, which only grow, or are only added; nothing else here is the run's own."""
        metrics = (self.path / name for name in ("gates.jsonl", "metrics.jsonl"))
        files = (self.path / TOKENS).glob("update-*.parquet")
        recorded = sorted(path for path in files if UPDATE.fullmatch(path.name))
        return [*(path for path in metrics if path.exists()), *shards(self.path), *recorded]

    def _name(self, path: Path) -> str:
        """Name of one of the run's files in a `cursor`."""
        return path.relative_to(self.path).as_posix()

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all, once the rows it is of are on the disk."""
        spent = {
            "seconds": round(time.monotonic() - self._started, 1),
            "cpu_seconds": round(time.process_time() - self._cpu, 1),
        }
        if self.leads:
            rows = self.cursor()
            longer = self.path / EXTENSIONS
            extended = {"extensions": read_jsonl(longer)} if longer.exists() else {}
            content = {**summary, **spent, **extended, "versions": versions()}
            if summary.get("finished", True):
                content = with_hashes(self.path, content, rows)
            write_json(self.path / "summary.json", content)


def whole(path: Path, read: Callable[[Path], Mapping[str, Any]] = read_mapping) -> dict[str, Any]:
    """The mapping in a file that the run writes whole: an empty one is damaged, too."""
    try:
        content = dict(read(path))
        if not content:
            raise ValueError(f"{path} is damaged: it is empty.")
    except ValueError as error:
        raise ValueError(f"{error} Restore it, or choose another --output-dir.") from error
    return content


def described(
    command: str, settings: Any, marks: Marks | None = None
) -> tuple[dict[str, Any], Marks]:
    """Contents of ``config.yaml``, and the marks of what it holds."""
    config = redact({"command": command, **plain(settings)})
    return config, Marks.of(type(settings), config) if marks is None else marks
