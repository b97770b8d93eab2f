"""Progress of a suite: a bar for each run on a terminal, a line per event elsewhere."""

from collections.abc import Mapping
from typing import Literal, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trustclip.support.jsonl import scan
from trustclip.train.suite.plan import Job

State = Literal["waiting", "running", "ending", "finished", "failed", "interrupted", "blocked"]


class Watched:
    """How far a run is, read from its growing ``metrics.jsonl``."""

    def __init__(self, job: Job) -> None:
        self._path, self._read = job.path / "metrics.jsonl", 0
        self._stage = "sft" if job.method is None else "rl"
        # With several tasks the last row of an evaluation is their average; a single task has none.
        self._average = "," in (job.settings.get("eval") or {}).get("tasks", "")
        self.updates, self.step, self.score = job.updates, 0, ""
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
            if row.get("stage") == self._stage:
                self.step = row.get("step", self.step)
            elif row.get("stage") == "eval" and (row.get("task") == "average") >= self._average:
                for name, mean in row.items():
                    if name.startswith("mean@") and "/" not in name and mean is not None:
                        text = f"{name.replace('mean', 'Mean')} {mean:.1%}"
                        self.score = f"update {row.get('step')}/{self.updates}, {text}"
                        scored = True
        return scored


class Display:
    """Bars of the active runs on a terminal; a line per event anywhere."""

    def __init__(self, console: Console, states: Mapping[str, State]) -> None:
        self._states, self._runs = states, dict[str, Watched]()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        hidden = not console.is_terminal
        self._bars = Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden)
        self._console, self._tasks = console, {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def event(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def begin(self, job: Job) -> None:
        """Watch a run from now on."""
        self._runs[job.name] = watched = Watched(job)
        self._tasks[job.name] = self._bars.add_task(job.name, total=watched.updates or None)

    def update(self) -> None:
        """Read the progress of the active runs, and take down the bars of others."""
        for name, run in self._runs.items():
            active = self._states[name] in ("running", "ending")
            if active and run.refresh():
                self.event(f"{name}: {run.score}")
            self._bars.update(self._tasks[name], completed=run.step, visible=active)
