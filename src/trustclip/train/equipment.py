"""What training needs besides its model, set up before one loads: failures show at once."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from rich.console import Console

from trustclip.support.jsonl import plain
from trustclip.support.marks import fields_of
from trustclip.support.secrets import redact
from trustclip.train.durable.lock import only_process
from trustclip.train.durable.ranks import by_first
from trustclip.train.rewarding import Rewards
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.services import await_server, check_sampling
from trustclip.train.settings.stages import Place, RLStage
from trustclip.train.watch.sinks import open_sink, viewer


class Equipment:
    """Rewards, tracker, run directory and console of training; closed at the end of a ``with``.

    Model and seed are those of ``place``: the settings of `trustclip rl`, or the recipe.

    Raises:
      ValueError: a reward that cannot be made, a tracker that cannot start, or a vLLM server that
        does not answer.
    """

    def __init__(
        self, settings: RLStage, place: Place, run: RunDirectory, console: Console
    ) -> None:
        self.run, self.console, self.seed = run, console, place.seed
        await_server(settings, console)
        check_sampling(settings, place.model)
        self.rewards = Rewards(settings, settings.style.extraction, place.seed)
        config = redact(plain({n: getattr(place, n) for n in fields_of(Place)} | plain(settings)))
        kind = settings.sink if run.leads else "none"  # one tracked run, not one for each rank
        try:
            self.sink = open_sink(kind, run.path.name, config, run.path)
        except ValueError:
            self.rewards.close()
            raise
        if command := viewer(kind, run.path):
            console.print(f"to watch: {command}", highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.rewards.close()
        self.sink.close()


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
