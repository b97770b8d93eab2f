"""Published results that a report sets beside measured ones, where a distribution brings some.

The entry point ``published`` of the group ``trustclip.reference`` names a `Reference`;
``trustclip-lab`` has that of the ATR-GRPO paper. Without one a report shows the runs alone.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points

from trustclip import stats
from trustclip.constraints.base import Method
from trustclip.report.tables import Table, TableRow

#: Benchmarks, by the name of their task, and their headings.
TITLES = {"amc23": "AMC2023", "aime24": "AIME2024", "aime25": "AIME2025"}

#: A column of scores: task (None for the average) and metric, such as ``"mean@8"``.
Column = tuple[str | None, str]


class Reference:
    """Published results; these are none. Scores are in percent.

    ``samples``: K of its Mean@K and Pass@K.
    """

    samples: int = 8

    def base(self, model: str, columns: Sequence[Column]) -> list[TableRow]:
        """The row of a model before training, if there is one."""
        return []

    def trained(
        self, model: str, method: Method | None, columns: Sequence[Column], *, repeated: bool
    ) -> list[TableRow]:
        """The row of a method with these hyper-parameters, of one run or of several, if any."""
        return []

    def score(
        self, model: str, method: Method | None, tasks: Collection[str], metric: str
    ) -> stats.Interval | None:
        """A score, of all tasks the average, over several runs where there are some.

        Bounds are of the mean over runs, and nan for one run.
        """
        return None

    def over_samples(
        self, kind: str, model: str, tasks: Collection[str]
    ) -> float | Mapping[int, float] | None:
        """What is printed of ``"mean"`` or ``"pass"``: a value at some K, or about one at every."""
        return None

    def tables(self) -> list[Table]:
        """All of its tables, as printed."""
        return []


@cache
def published() -> Reference:
    """The installed reference, or an empty one."""
    entries = entry_points(group="trustclip.reference", name="published")
    return next(iter(entries)).load() if entries else Reference()
