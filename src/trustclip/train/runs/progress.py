"""Progress of a run: a live bar on a terminal, a plain line per step elsewhere."""

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from trustclip.logs.names import SAMPLING_ENTROPY
from trustclip.support.text import duration

#: Metrics in a line: label, key of the metrics row, format. Of one label, the first that is there.
SHOWN = (
    ("loss", "loss", "{:.3f}"),
    ("correct", "correct", "{:.1%}"),
    ("reward", "reward", "{:.3f}"),
    ("entropy", SAMPLING_ENTROPY, "{:.3f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("gated", "trustclip/gated", "{:.1%}"),
    ("length", "completions/mean_length", "{:.1f}"),
)

#: Characters of a terminal from which on the bar leaves room for every metric.
WIDE = 100
#: Those that the numbers of steps take, such as 1000/1000.
WIDEST = 9


class Stage:
    """One stage of a run: a live bar on a terminal, a line per step anywhere else.

    Example:
      >>> import io
      >>> out = io.StringIO()
      >>> with Stage(Console(file=out, width=80), "rl", total=2) as stage:
      ...     stage.step({"reward": 0.25})
      >>> out.getvalue().split("eta")[0]
      'rl 1/2  reward 0.250  '
    """

    def __init__(self, console: Console, name: str, total: int = 0) -> None:
        self._console, self._name, self._total = console, name, total
        self._started, self._done, self._before = time.monotonic(), 0, 0
        self._latest: dict[str, Any] = {}
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:>6}", style="bold", markup=False),
                BarColumn(bar_width=24 if console.width >= WIDE else 6),
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=WIDEST)),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn(
                    "{task.fields[shown]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis"),
                ),
                console=console,
            )
            self._task = self._bar.add_task(name, total=total, shown="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def resume(self, done: int, total: int) -> None:
        """Set the number of steps that an earlier attempt has done, and that of all."""
        self._before, self._done, self._total = done, done, total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def step(self, metrics: dict[str, Any], steps: int = 1) -> None:
        """Advance by ``steps``, with the newest metrics.

        A metric missing from a row keeps its last value: rewards come once per generation.
        """
        self._done += steps
        self._latest |= {key: metrics[key] for _, key, _ in SHOWN if metrics.get(key) is not None}
        texts: dict[str, str] = {}
        for label, key, form in SHOWN:
            # The loss of a policy gradient is not informative, and the line is short.
            if key in self._latest and not (key == "loss" and "reward" in self._latest):
                texts.setdefault(label, f"{label} {form.format(self._latest[key])}")
        figures = "  ".join(texts.values())
        if self._bar is not None:
            self._bar.update(self._task, advance=steps, shown=figures)
            return
        spent, count = time.monotonic() - self._started, max(self._done - self._before, 1)
        remaining = spent / count * (self._total - self._done)
        line = f"{self._name} {self._done}/{self._total}  {figures}  eta {duration(remaining)}"
        self._console.print(line, highlight=False, soft_wrap=True)
