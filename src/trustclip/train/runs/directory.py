"""A run directory of the training program: one that a later process continues, and finishes."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from trustclip.logs.forms import SUMMARY, read_as
from trustclip.logs.identity import essential
from trustclip.logs.writing.extents import Cursor
from trustclip.logs.writing.hashes import FINAL, missing_files
from trustclip.logs.writing.run import INPUTS, RunWriter, described, whole
from trustclip.support.flush import flush, flush_tree
from trustclip.support.jsonl import read_mapping
from trustclip.support.schemas import conform, mapping
from trustclip.support.text import join_words
from trustclip.train.durable.store import CheckpointStore
from trustclip.train.problems.problem import Problem

_INPUTS = mapping("Inputs", {"inputs": dict[str, str], "changes": list[list[str]]}, total=False)


def read_inputs(folder: Path) -> Mapping[str, Any]:
    """The content of ``inputs.json``: hashes by the name of an input, and what changed, each time.

    Raises:
      ValueError: it holds something else.
    """
    content = read_mapping(folder / INPUTS)
    conform(content, _INPUTS, str(folder / INPUTS))
    return content


class RunDirectory(RunWriter):
    """A `RunWriter` with the checkpoints and the model of its run beside the rows."""

    elsewhere: ClassVar[str] = "--output-dir"
    #: Gets every row that is logged, too.
    listener: Callable[[Mapping[str, Any]], None] | None = None

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``, and hand it to the listener."""
        super().log(row)
        if self.listener is not None and self.leads:
            self.listener(row)

    @staticmethod
    def stopped(path: Path, command: str, settings: Any) -> bool:
        """Whether the folder holds a run of exactly these settings that is not finished."""
        begun, summary = path / "config.yaml", path / "summary.json"
        if not begun.exists() or (summary.exists() and read_as(SUMMARY, summary).get("finished")):
            return False
        config, marks = described(command, settings)
        return essential(whole(begun), marks) == essential(config, marks)

    @property
    def final(self) -> Path:
        return self.path / FINAL

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def quarantine(self) -> Path | None:
        """Where unreadable problem rows are listed, by the first rank."""
        return self.path / "quarantine.jsonl" if self.leads else None

    def problems(self, problems: Iterable[Problem], task: str | None = None) -> None:
        """Record the problems used, each once."""
        self.pose(map(vars, problems), task)

    def finished(self) -> bool:
        """Whether the run is finished: its summary says so, and its model is there.

        A model that lacks files is rebuilt from the newest checkpoint, with a warning.
        """
        if not (summary := self.summary).get("finished"):
            return False
        gone = missing_files(self.path, summary)
        if not gone:
            return True
        are = "are" if len(gone) > 1 else "is"
        what = f"{self.path} is finished, but {', '.join(gone[:3])} {are} missing or cut"
        if not CheckpointStore(self.checkpoints).steps():
            raise ValueError(
                f"{what}, and no checkpoint is left to make the model from. Restore the folder "
                f"{self.final} from a copy, or train again in another --output-dir; the rows and "
                "scores of this run can still be read."
            )
        warnings.warn(f"{what}: the newest checkpoint is taken to make it again.", stacklevel=2)
        self._reopen(summary)
        return False

    def mark(self) -> dict[str, int]:
        """Sizes of the files that grow, for `rewind`, at once and not safe from a power cut."""
        return {self._name(path): path.stat().st_size for path in self._row_files()}

    @property
    def changes(self) -> list[str]:
        """A sentence for each time that the run was continued on other inputs."""
        changes = read_inputs(self.path).get("changes", [])
        return [f"The run continued on other inputs: {join_words(names)}." for names in changes]

    def rewind(self, cursor: Cursor) -> None:
        """`RunWriter.rewind`, after which the rows say on what other inputs the run continues."""
        super().rewind(cursor)
        rows = self.logged() if self.leads and self.changes else []
        told = [row.get("text") for row in rows]
        steps = [step for row in rows if isinstance(step := row.get("step"), int)]
        for text in self.changes if self.leads else ():
            if text not in told:
                self.notice(max([0, *steps]), "changed_inputs", text)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """`RunWriter.summarize`, with `changes` where there are any."""
        changed = {"changed_inputs": self.changes} if self.changes else {}
        super().summarize({**summary, **changed})

    def start_over(self) -> None:
        """Before training: set aside rows that no checkpoint continues.

        There are such rows when ``checkpoints/`` has been moved away to train from the start. They
        go to ``attempt-1/``, ``attempt-2/``, ..., with a warning.
        """
        rows = self._row_files()
        if not self.leads or not rows or CheckpointStore(self.checkpoints).begun:
            return
        number = 1
        while (folder := self.path / f"attempt-{number}").exists():
            number += 1
        folder.mkdir()
        for path in rows:
            aside = folder / self._name(path)
            aside.parent.mkdir(exist_ok=True)
            self._extents.forget(path)
            path.rename(aside)
        flush_tree(folder)
        for source in {path.parent for path in rows}:
            flush(source)
        warnings.warn(
            f"{self.checkpoints} holds nothing to continue from, so training starts from the "
            f"beginning; the rows of the earlier attempt are now in {folder}.",
            stacklevel=2,
        )

    def refuse_without_checkpoint(self) -> None:
        """Refuse more updates for a finished run that kept no checkpoint."""
        if not CheckpointStore(self.checkpoints).steps():
            raise ValueError(
                f"{self.path} is finished and kept no checkpoint to go on from (save_steps was 0): "
                f"start another run from its model, --model {self.final}."
            )
