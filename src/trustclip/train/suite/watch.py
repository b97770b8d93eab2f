"""Progress of a suite: a line for each event."""

from collections.abc import Mapping
from typing import Literal

from rich.console import Console

from trustclip.support.jsonl import scan
from trustclip.train.suite.plan import Job

State = Literal["waiting", "running", "ending", "finished", "failed", "interrupted", "blocked"]


class Watched:
    """How far a run is, read from its growing ``metrics.jsonl``."""

    def __init__(self, job: Job) -> None:
        self._path, self._read = job.path / "metrics.jsonl", 0
        # With several tasks the last row of an evaluation is their average; a single task has none.
        self._average = "," in (job.settings.get("eval") or {}).get("tasks", "")
        self.updates, self.score = job.updates, ""
        self.refresh()

    def refresh(self) -> bool:
        """Read new rows; True if an evaluation is among them."""
        size = self._path.stat().st_size if self._path.exists() else 0
        scored = False
        # A resumed run has truncated the file to its checkpoint.
        for line in scan(self._path, self._read if size >= self._read else 0) if size else ():
            if line.torn:
                break
            self._read, row = line.offset + len(line.content), line.row or {}
            if row.get("stage") == "eval" and (row.get("task") == "average") >= self._average:
                for name, mean in row.items():
                    if name.startswith("mean@") and "/" not in name and mean is not None:
                        text = f"{name.replace('mean', 'Mean')} {mean:.1%}"
                        self.score = f"update {row.get('step')}/{self.updates}, {text}"
                        scored = True
        return scored


class Display:
    """A line for each event of the runs, and for each evaluation of an active one."""

    def __init__(self, console: Console, states: Mapping[str, State]) -> None:
        self._console, self._states, self._runs = console, states, dict[str, Watched]()

    def event(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, job: Job) -> None:
        """Watch a run from now on."""
        self._runs[job.name] = Watched(job)

    def update(self) -> None:
        """Read the progress of the active runs."""
        for name, run in self._runs.items():
            if self._states[name] in ("running", "ending") and run.refresh():
                self.event(f"{name}: {run.score}")
