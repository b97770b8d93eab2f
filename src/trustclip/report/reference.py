"""Published results that a report sets beside measured ones, where a distribution brings some.

The entry point ``published`` of the group ``trustclip.reference`` names a `Reference`;
``trustclip-lab`` has that of the ATR-GRPO paper. Without one a report shows the runs alone.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from trustclip import stats
from trustclip.constraints.base import Method

#: Benchmarks, by the name of their task, and their headings.
TITLES = {"amc23": "AMC2023", "aime24": "AIME2024", "aime25": "AIME2025"}

#: A row as printed, percent: ``method`` and cells such as ``avg_mean8_final`` and
#: ``avg_mean8_best`` of one run, or ``avg_mean8_mean`` and ``avg_mean8_std`` of several.
Row = Mapping[str, str]


class Printed(NamedTuple):
    """A table as printed: its key and title, and rows, with headings of sections among them."""

    key: str
    title: str
    rows: Sequence[str | Row]


class Reference:
    """Published results; these are none. Scores are in percent.

    ``tasks``: benchmarks that its averages are over. ``samples``: K of its Mean@K and Pass@K.
    """

    tasks: Collection[str] = ()
    samples: int = 8

    def base(self, model: str) -> Row | None:
        """The row of a model before training."""
        return None

    def single_run(self, model: str, method: Method | None) -> Row | None:
        """The row of one run of a method with these hyper-parameters."""
        return None

    def repeated_runs(self, model: str, method: Method | None) -> Row | None:
        """The row of several runs of a method with these hyper-parameters."""
        return None

    def score(self, row: Row | None, tasks: Collection[str], metric: str) -> stats.Interval | None:
        """A score of a row, with its interval over runs; without bounds (nan) for one run.

        Args:
          row: a row, or None, of which there is no score.
          tasks: names of tasks: all for the average, or one of them.
          metric: ``"mean@8"`` or ``"pass@8"``.
        """
        return None

    def over_samples(
        self, kind: str, model: str, tasks: Collection[str]
    ) -> float | Mapping[int, float] | None:
        """What is printed of Mean@K or Pass@K over K: a value at some K, or about one at every K.

        Args:
          kind: ``"mean"`` or ``"pass"``.
          model: name of the model.
          tasks: benchmarks of the average.
        """
        return None

    def tables(self) -> Sequence[Printed]:
        """All of its tables."""
        return ()


@cache
def published() -> Reference:
    """The installed reference, or one that knows of nothing."""
    found = entry_points(group="trustclip.reference", name="published")
    return next(iter(found)).load() if found else Reference()
