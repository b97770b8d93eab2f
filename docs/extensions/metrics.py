"""The table of logged metrics, ``docs/metrics.toml``, as values."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Words of a name that stand for many -> what they match.
_STANDS_FOR = {
    "QUADRANT": "(positive|negative)_(above|below)",
    "LOW_HIGH": r"[\d.]+_([\d.]+|inf)",
    "NAME": r"[\w.-]+",
    "METHOD": "[^/]+",
    "OTHER": "[^/]+",
    "N": r"(\d+|\d+_(\d+|inf))",
    "K": r"\d+",
}


@dataclass(frozen=True)
class Metric:
    """A metric, or a family of them; ``places`` are those of its ``in``, ``todo`` its ``do``."""

    name: str
    what: str
    unit: str
    over: str
    between: str
    places: tuple[str, ...]
    todo: str

    def matches(self, name: str) -> bool:
        """Whether a logged name is of this metric."""
        parts = re.split(f"({'|'.join(_STANDS_FOR)})", self.name)
        return bool(
            re.fullmatch("".join(_STANDS_FOR.get(part) or re.escape(part) for part in parts), name)
        )


@dataclass(frozen=True)
class Group:
    """Metrics of one kind."""

    title: str
    about: str
    prefix: str
    metrics: tuple[Metric, ...]


def _groups() -> Iterator[tuple[str, Group]]:
    table = Path(__file__).parents[1] / "metrics.toml"
    for key, group in tomllib.loads(table.read_text(encoding="utf-8")).items():
        metrics = tuple(
            Metric(
                m["name"], m["what"], m["unit"], m["over"], m.get("between", ""),
                tuple(m.get("in", ())), m.get("do", ""),
            )
            for m in group["metrics"]
        )  # fmt: skip
        yield key, Group(group["title"], group.get("about", ""), group.get("prefix", ""), metrics)


#: Heading in the table -> its group.
GROUPS = dict(_groups())


def found(name: str) -> Iterator[tuple[Group, Metric]]:
    """The descriptions that a name of a log has, with its group."""
    for group in GROUPS.values():
        bare = name.removeprefix("eval_").removeprefix("actor/")
        if bare.startswith(group.prefix):
            for metric in group.metrics:
                if metric.matches(bare.removeprefix(group.prefix)):
                    yield group, metric
