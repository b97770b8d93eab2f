"""The beginning of a command: its run, new or continued, locked against other processes."""

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from trustclip.durable.handover import by_first
from trustclip.durable.lock import only_process
from trustclip.runs.directory import RunDirectory


@contextlib.contextmanager
def open_run(command: str, settings: Any, console: Console) -> Iterator[tuple[RunDirectory, bool]]:
    """The run of a command, new or continued, and whether it is finished already.

    No other process works in its folder meanwhile. Every rank of the job calls it.

    Raises:
      ValueError: the folder holds another run, another process uses it, or a finished run's model
        is gone and cannot be written again.
      TrainingError: the same, on ranks other than the first.
    """
    folder, runs = settings.output_dir, []
    with contextlib.ExitStack() as locks:

        def begin() -> bool:
            locks.enter_context(only_process(folder))
            runs.append(RunDirectory.resumed(folder, command, settings))
            return runs[0].finished()

        finished = by_first(begin)
        run = runs[0] if runs else RunDirectory(folder, command, settings)
        if run.extended:
            console.print(run.extended, highlight=False, markup=False, soft_wrap=True)
        if finished:
            console.print(f"{run.path} is finished; nothing to do.", highlight=False)
        yield run, finished
