"""What training needs besides its model, set up before one loads: failures show at once."""

from typing import Any, Self

from rich.console import Console

from trustclip.recipes.rewarding import Rewards
from trustclip.recipes.services import await_server, check_sampling
from trustclip.recipes.watch.sinks import open_sink, viewer
from trustclip.runs.directory import RunDirectory
from trustclip.settings.marks import fields_of
from trustclip.settings.stages import Place, RLStage
from trustclip.support.jsonl import plain
from trustclip.support.secrets import redact


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
