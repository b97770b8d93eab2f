"""Opening the run directory of a command, new or continued."""

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from trustclip.support.lock import only_process
from trustclip.support.terminal import announce
from trustclip.train.durable.ranks import Interrupted, by_first
from trustclip.train.runs.directory import RunDirectory


@contextlib.contextmanager
def open_run(
    command: str, settings: Any, console: Console, *, part: bool = False
) -> Iterator[tuple[RunDirectory, bool]]:
    """The run of a command, and whether it is finished already.

    No other process works in its folder meanwhile. Every rank of the job calls it. A run that is
    asked to stop inside ends with a sentence, or with `Interrupted` if it is ``part`` of another.

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
            announce(console, run.extended)
        if finished:
            console.print(f"{run.path} is finished; nothing to do.", highlight=False)
        try:
            yield run, finished
        except Interrupted:
            if not (summary := run.summary).get("finished"):
                run.summarize({"command": command, **summary, "finished": False})
            if part:
                raise
            console.print(f"stopped; the same command continues {run.path}.", highlight=False)
