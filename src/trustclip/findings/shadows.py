"""Shadow gates: what other methods would have cut of the same tokens, and at which threshold."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from trustclip.constraints.base import Method, methods
from trustclip.constraints.shadow import refusal
from trustclip.constraints.thresholds import scale_thresholds, thresholds, widest
from trustclip.findings.course import Course
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, values
from trustclip.logs.watched import chunks, supplied
from trustclip.stats.scores import Floats
from trustclip.support.jsonl import Row
from trustclip.support.text import percent

#: The search begins between these factors of the method's own thresholds, at so many of them.
_FACTORS, _FIRST = (1e-6, 1e6), 25
#: So many passes over the log follow, each with so many factors within a bracket.
_PASSES, _EACH = 4, 8
#: Digits of a threshold, the fewest that cut no more than asked for: many tokens may lie at one.
_DIGITS = (4, 6, 17)


@dataclass(frozen=True)
class Matrix:
    """Agreement of the acting method, which is the first, and of its shadows, pair by pair.

    Args:
      names: of the methods.
      gated: share of tokens that each gates; NaN where unknown. Shape [methods].
      both: share of tokens that each pair gates. Shape [methods, methods].
      cosine: between the updates of each pair. Same shape.
    """

    names: Sequence[str]
    gated: Floats
    both: Floats
    cosine: Floats

    @property
    def jaccard(self) -> Floats:
        """What both of a pair gate over what either does; NaN where neither gates anything."""
        return _share(self.both, self.gated[:, None] + self.gated - self.both)

    @property
    def panels(self) -> dict[str, tuple[str, Floats]]:
        """What `trustclip.report.draw.figures.matrices` draws."""
        return {
            "Jaccard of the tokens cut": (".0%", self.jaccard),
            "Cosine of the updates": (".2f", self.cosine),
        }

    def of_acting(self, i: int) -> tuple[float, float]:
        """(precision, recall) of the ``i``-th method for what the acting one gates."""
        precision, recall = _share(self.both[0, i], self.gated[[i, 0]])
        return float(precision), float(recall)


def _share(part: Floats, whole: Floats) -> Floats:
    """Part over whole; NaN where that is nothing."""
    return part / np.where(whole > 0, whole, np.nan)


def matrix(acting: str, metrics: Mapping[str, float]) -> Matrix | None:
    """The matrix of metrics of `trustclip.constraints.shadow.Shadows`; None without shadows."""
    names = [name for name in metrics if name.startswith("shadow/") and name.endswith("/gated")]
    labels = [name.removeprefix("shadow/").removesuffix("/gated") for name in names]
    if not labels:
        return None
    gated = np.array([metrics.get(name, np.nan) for name in ("gated", *names)])
    both, cosine = np.full((2, len(gated), len(gated)), np.nan)
    for key, pairs in (("both", both), ("cosine", cosine)):
        for i, label in enumerate(labels, start=1):
            pairs[0, i] = pairs[i, 0] = metrics.get(f"shadow/{label}/{key}", np.nan)
            for j, other in enumerate(labels, start=1):
                # The order of labels here need not be that of the run, which has a pair once.
                if (value := metrics.get(f"shadow/{label}/{key}/{other}")) is not None:
                    pairs[i, j] = pairs[j, i] = value
    np.fill_diagonal(both, gated)
    np.fill_diagonal(cosine, 1.0)
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
    if nearest := [i for i in every if overlap.jaccard[0, i] > 0]:
        most = max(nearest, key=lambda i: overlap.jaccard[0, i])
        text += (
            f" {overlap.names[most]} is closest to {acting}: of the tokens that either cuts, both "
            f"cut {percent(overlap.jaccard[0, most], 0)} %."
        )
    yield Finding("shadows/cut", "note", text)


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
    cosine = overlap.cosine[0, i]
    angle = "" if math.isnan(cosine) else f" (cosine of the updates {cosine:.3f})"
    return f"{name} would have cut {percent(cut, 2)} %{of_acting}{angle}"


@dataclass(frozen=True)
class Suggestion:
    """A method at the thresholds with the share asked for.

    Args:
      method: with its thresholds moved.
      moved: value of each of them.
      share: of the tokens that the method would have cut.
      tokens: of completions with an advantage.
    """

    method: Method
    moved: dict[str, float]
    share: float
    tokens: int


def suggest(method: Method, share: float, paths: Sequence[Path]) -> Suggestion:
    """Find the thresholds at which a method would have cut a share of the tokens of a log.

    All thresholds of the method are multiplied by one factor, so that their ratios stay. Shares
    are of the tokens of completions with an advantage. The files (`trustclip.logs.watched.chunks`)
    are read several times, in bounded memory.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share must be between 0 and 1, got {share:g}.")
    if not thresholds(method):
        raise ValueError(
            f"no threshold can be suggested for {method.name!r}, because none of its settings "
            "decides which tokens it cuts."
        )
    if reason := refusal(method, supplied(paths), "this log"):
        raise ValueError(reason)
    low, high = _FACTORS[0], min(_FACTORS[1], widest(method))
    shares, tokens = _shares(method, paths, np.geomspace(low, high, _FIRST))
    for _ in range(_PASSES):
        shares |= _shares(method, paths, np.geomspace(*_bracket(shares, share), _EACH))[0]
    at = _bracket(shares, share)[1]
    if at == low or not 0 < shares[at] <= share:
        raise ValueError(
            f"no threshold of {method.name!r} would have cut {percent(share, 2)} % of these "
            f"{tokens:,} tokens: it cuts between {percent(shares[high], 2)} % and "
            f"{percent(shares[low], 2)} %."
        )
    moved = thresholds(scale_thresholds(method, at))
    chosen, found = method, 0.0
    for digits in _DIGITS:
        rounded = {name: float(f"{value:.{digits}g}") for name, value in moved.items()}
        chosen = replace(method, **rounded)  # type: ignore[type-var]
        found = _shares(chosen, paths, [1.0])[0][1.0]
        if 0 < found <= share:
            break
    return Suggestion(chosen, moved, found, tokens)


@torch.no_grad()
def _shares(
    method: Method, paths: Sequence[Path], factors: Iterable[float]
) -> tuple[dict[float, float], int]:
    """Share that a method would have cut with its thresholds times each factor; all tokens."""
    methods = {float(factor): scale_thresholds(method, float(factor)) for factor in factors}
    cut, tokens = dict.fromkeys(methods, 0), 0
    for _, batch in chunks(paths):
        tokens += int(batch.finite.sum())
        for factor, one in methods.items():
            cut[factor] += int((batch.finite & ~one.surrogate(batch).kept).sum())
    if not tokens:
        raise ValueError(f"{', '.join(map(str, paths))}: no token has an advantage.")
    return {factor: number / tokens for factor, number in cut.items()}, tokens


def _bracket(shares: Mapping[float, float], share: float) -> tuple[float, float]:
    """The largest factor with a share above the one asked for, and the next."""
    factors = sorted(shares)  # shares fall as thresholds widen
    above = [factor for factor in factors if shares[factor] > share]
    if not above:
        return factors[0], factors[0]
    beyond = [factor for factor in factors if factor > above[-1]]
    return above[-1], beyond[0] if beyond else factors[-1]
