"""Shadow gates: what other methods would have cut of the same tokens."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trustclip.constraints.base import Method, methods
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, values
from trustclip.support.jsonl import Row
from trustclip.support.text import percent

_NAN = math.nan


@dataclass(frozen=True)
class Matrix:
    """Agreement of the acting method, which is the first, and of its shadows, pair by pair.

    Args:
      names: of the methods.
      gated: share of tokens that each gates; NaN where unknown.
      both: share of tokens that each pair gates.
      cosine: between the updates of each pair.
    """

    names: Sequence[str]
    gated: Sequence[float]
    both: Sequence[Sequence[float]]
    cosine: Sequence[Sequence[float]]

    @property
    def jaccard(self) -> list[list[float]]:
        """What both of a pair gate over what either does; NaN where neither gates anything."""
        pairs = range(len(self.names))
        return [[self._jaccard(i, j) for j in pairs] for i in pairs]

    @property
    def panels(self) -> dict[str, tuple[str, list[list[float]]]]:
        """What `trustclip.report.draw.figures.matrices` draws."""
        return {
            "Jaccard of the tokens cut": (".0%", self.jaccard),
            "Cosine of the updates": (".2f", [list(row) for row in self.cosine]),
        }

    def _jaccard(self, i: int, j: int) -> float:
        either = self.gated[i] + self.gated[j] - self.both[i][j]
        return self.both[i][j] / either if either > 0 else _NAN

    def of_acting(self, i: int) -> tuple[float, float]:
        """(precision, recall) of the ``i``-th method for what the acting one gates."""
        both = self.both[0][i]
        return tuple(both / g if g > 0 else _NAN for g in (self.gated[i], self.gated[0]))  # type: ignore[return-value]


def matrix(acting: str, metrics: Mapping[str, float]) -> Matrix | None:
    """The matrix of metrics of `trustclip.constraints.shadow.Shadows`; None without shadows."""
    names = [name for name in metrics if name.startswith("shadow/") and name.endswith("/gated")]
    labels = [name.removeprefix("shadow/").removesuffix("/gated") for name in names]
    if not labels:
        return None

    def get(i: int, key: str) -> float:
        return metrics.get(f"shadow/{labels[i - 1]}/{key}", _NAN)

    def pair(key: str, i: int, j: int) -> float:
        i, j = min(i, j), max(i, j)
        if i == j:
            return 1.0 if key == "cosine" else gated[i]
        if i == 0:
            return get(j, key)
        # The order of labels here need not be that of the run.
        value = get(i, f"{key}/{labels[j - 1]}")
        return get(j, f"{key}/{labels[i - 1]}") if math.isnan(value) else value

    every = range(len(labels) + 1)
    gated = [metrics.get("gated", _NAN), *(get(i, "gated") for i in every[1:])]
    both, cosine = ([[pair(k, i, j) for j in every] for i in every] for k in ("both", "cosine"))
    return Matrix([acting, *labels], gated, both, cosine)


def mean_metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Means over log lines of the metrics of the shadows, and of ``gated``."""
    keys = dict.fromkeys(name.removeprefix(PREFIX) for row in rows for name in row)
    names = [name for name in keys if name == "gated" or name.startswith("shadow/")]
    return {name: fmean(column) for name in names if (column := values(rows, name))}


def of_run(course: Course) -> Iterator[Finding]:
    """What the shadows of a run would have done, in one paragraph.

    A shadow around the acting method cuts what that cuts by its nature, so none is compared.
    """
    acting = course.method.name if course.method else str((course.run.method or {}).get("name"))
    overlap = matrix(acting, mean_metrics(course.full))
    if overlap is None or course.log is not None:
        return
    every = [i for i in range(1, len(overlap.names)) if not _around(overlap.names[i], acting)]
    if not every:
        return
    parts = [_clause(overlap, i, acting) for i in sorted(every, key=lambda i: -overlap.gated[i])]
    text = f"On the same tokens, {'; '.join(parts)}."
    if nearest := [i for i in every if overlap.jaccard[0][i] > 0]:
        most = max(nearest, key=lambda i: overlap.jaccard[0][i])
        text += (
            f" {overlap.names[most]} is closest to {acting}: of the tokens that either cuts, both "
            f"cut {percent(overlap.jaccard[0][most], 0)} %."
        )
    cut = {f"shadow/{overlap.names[i]}/gated": overlap.gated[i] for i in every}
    yield Finding("shadows/cut", "note", text, cut)


def _around(label: str, acting: str) -> bool:
    """Whether a shadow of that label wraps a method of that name, as it does by default."""
    name, _, arguments = label.partition("(")
    if "inner=" in arguments:
        return re.match(rf"{re.escape(acting)}\b", arguments.partition("inner=")[2]) is not None
    try:
        inner = getattr(methods()[name](), "inner", None)
    except (KeyError, TypeError, ValueError):
        return False  # of another file, or one that has no defaults
    return isinstance(inner, Method) and inner.name == acting


def _clause(overlap: Matrix, i: int, acting: str) -> str:
    name, cut = overlap.names[i], overlap.gated[i]
    if not cut > 0:
        return f"{name} would have cut none"
    _, recall = overlap.of_acting(i)
    share = percent(recall, 0)
    of_acting = "" if math.isnan(recall) else f", among them {share} % of what {acting} cut"
    cosine = overlap.cosine[0][i]
    angle = "" if math.isnan(cosine) else f" (cosine of the updates {cosine:.3f})"
    return f"{name} would have cut {percent(cut, 2)} %{of_acting}{angle}"
