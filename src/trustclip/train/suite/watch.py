"""Progress of a suite: a live table on a terminal, a line per event elsewhere."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trustclip.support.jsonl import Row, scan
from trustclip.support.text import duration
from trustclip.train.suite.plan import Job

State = Literal["waiting", "running", "ending", "finished", "failed", "interrupted", "blocked"]

STYLES: dict[State, str] = {
    "waiting": "dim", "running": "bold", "ending": "yellow", "finished": "green",
    "failed": "red", "interrupted": "yellow", "blocked": "red",
}  # fmt: skip


class Progress:
    """Progress of a run, read from its growing ``metrics.jsonl``."""

    def __init__(self, job: Job) -> None:
        self._path = job.path / "metrics.jsonl"
        self._stage = "sft" if job.method is None else "rl"
        # With several tasks the last row of an evaluation is their average; a single task has none.
        self._average = "," in (job.settings.get("eval") or {}).get("tasks", "")
        self._read = 0
        self._pace: tuple[float, int] | None = None
        self.updates = job.updates
        self.step = 0
        self.reward: float | None = None
        self.gated: float | None = None
        self.score: tuple[str, float] | None = None
        self.scored = 0
        self.refresh()
        self._pace = None

    def refresh(self) -> bool:
        """Read new rows; True if an evaluation is among them."""
        before = self.score
        for row in self._new_rows():
            if row.get("stage") == self._stage:
                self._note_update(row)
            elif row.get("stage") == "eval":
                self._note_evaluation(row)
        return self.score is not before

    def _new_rows(self) -> Iterator[Row]:
        try:
            size = self._path.stat().st_size
        except OSError:
            return
        if size < self._read:
            # A resumed run has truncated the file to its checkpoint.
            self._read = 0
        for line in scan(self._path, self._read):
            if line.torn:
                break
            self._read = line.offset + len(line.content)
            if line.row is not None:
                yield line.row

    def _note_update(self, row: Mapping[str, Any]) -> None:
        self.step = row.get("step", self.step)
        # Rewards come once per generation: a row without one keeps the last.
        self.reward = row.get("reward", self.reward)
        self.gated = row.get("trustclip/gated", self.gated)
        self._pace = self._pace or (time.monotonic(), self.step)

    def _note_evaluation(self, row: Mapping[str, Any]) -> None:
        if self._average and row.get("task") != "average":
            return
        for key, value in row.items():
            if key.startswith("mean@") and "/" not in key and value is not None:
                self.score = key.replace("mean", "Mean"), value
                self.scored = row.get("step", self.step)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last update, at the pace since this object was created."""
        if self._pace is None or not self.updates:
            return None
        since, first = self._pace
        if self.step <= first:
            return None
        return (time.monotonic() - since) / (self.step - first) * (self.updates - self.step)

    def cells(self) -> list[str]:
        """Step, reward, gated share, Mean@K so far and time left, as text."""
        left = self.seconds_left
        return [
            f"{self.step}/{self.updates or '?'}" if self.step else "",
            "" if self.reward is None else f"{self.reward:.3f}",
            "" if self.gated is None else f"{self.gated:.1%}",
            "" if self.score is None else f"{self.score[0]} {self.score[1]:.1%}",
            "" if left is None else duration(left),
        ]


class Display:
    """The table on a terminal; a line per event anywhere else."""

    def __init__(self, console: Console, jobs: Iterable[Job], states: Mapping[str, State]) -> None:
        self._console, self._states = console, states
        self._progress = {job.name: Progress(job) for job in jobs}
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update(now=True)
        if self._live is not None:
            self._live.stop()

    def event(self, text: str) -> None:
        """Print one line, unless a live table is shown."""
        if self._live is None:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def restart(self, job: Job) -> None:
        """Restart the measurement of a run's pace."""
        self._progress[job.name] = Progress(job)

    def update(self, *, now: bool = False) -> None:
        """Read the progress of the runs and redraw, at most twice a second unless ``now``."""
        if not now and time.monotonic() - self._drawn < 0.5:
            return
        self._drawn = time.monotonic()
        for name, state in self._states.items():
            progress = self._progress[name]
            if state in ("running", "ending") and progress.refresh():
                _, _, _, score, _ = progress.cells()
                self.event(f"{name}: update {progress.scored}/{progress.updates}, {score}")
        if self._live is not None:
            self._live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """All runs, or only active and failed ones if the terminal is too small."""
        counts = Counter(self._states.values())
        title = ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for header in ("run", "state", "update", "reward", "gated", "score", "left"):
            table.add_column(header, justify="left" if header in ("run", "state") else "right")
        room = len(self._states) <= self._console.height - 4
        for name, state in self._states.items():
            if room or state in ("running", "ending", "failed"):
                table.add_row(name, Text(state, STYLES[state]), *self._progress[name].cells())
        return table
