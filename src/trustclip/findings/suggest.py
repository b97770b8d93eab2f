"""The threshold at which a method would have cut a chosen share of the tokens of a log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trustclip.constraints.base import Method
from trustclip.constraints.shadow import refusal
from trustclip.constraints.thresholds import scale_thresholds, thresholds, widest
from trustclip.logs.watched import chunks, supplied
from trustclip.stats import Interval, RunSummary
from trustclip.support.text import percent

#: The search begins between these factors of the method's own thresholds, at so many of them.
_FACTORS, _FIRST = (1e-6, 1e6), 25
#: So many passes over the log follow, each with so many factors within a bracket.
_PASSES, _EACH = 4, 8
#: Fewer generations, or prompts, say little about how much shares vary between them.
_FEW = 8

_Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Suggestion:
    """A method at the thresholds with the share asked for."""

    method: Method  # with its thresholds moved
    #: Lowest, suggested and highest value of each threshold moved: the ends of those whose share's
    #: interval holds the share asked for.
    moved: dict[str, tuple[float, float, float]]
    share: Interval  # of tokens that the method would have cut, with its 95 % interval
    clusters: int  # number of what the intervals are clustered by
    unit: str  # what that is: "generations", "prompts" or "completions"
    tokens: int  # of completions with an advantage


def suggest(method: Method, share: float, paths: Sequence[Path]) -> Suggestion:
    """Find the thresholds at which a method would have cut a share of the tokens of a log.

    All thresholds of the method are multiplied by one factor, so that their ratios stay. Shares
    are of the tokens of completions with an advantage; their intervals are Student's, clustered by
    generation, or by prompt or completion where the log has fewer than 8 of these. The files
    (`trustclip.logs.watched.sources`) are read several times, in bounded memory.
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
    search = _Search(method, paths)
    low, high = _FACTORS[0], min(_FACTORS[1], widest(method))
    search.look(np.geomspace(low, high, _FIRST))
    for _ in range(_PASSES):
        search.look(f for end in _ENDS for f in np.geomspace(*search.bracket(share, end), _EACH))
    lower, at, upper = (search.bracket(share, end)[1] for end in ("low", "value", "high"))
    interval = search.measured[at]
    if at == low or not 0 < interval.value <= share:
        narrowest, widened_most = (search.measured[f].value for f in (low, high))
        raise ValueError(
            f"no threshold of {method.name!r} would have cut {percent(share, 2)} % of these "
            f"{search.tokens:,} tokens: it cuts between {percent(widened_most, 2)} % and "
            f"{percent(narrowest, 2)} %."
        )
    ends = [thresholds(scale_thresholds(method, factor)) for factor in (lower, at, upper)]
    moved = {name: (ends[0][name], ends[1][name], ends[2][name]) for name in ends[1]}
    # Four digits are more than the interval supports, and what a person types.
    rounded = {name: float(f"{value:.4g}") for name, value in ends[1].items()}
    chosen = replace(method, **rounded)  # type: ignore[type-var]
    return Suggestion(chosen, moved, interval, search.clusters, search.unit, search.tokens)


#: Of a share's interval: the value, and the bounds that give the ends of the thresholds.
_End = Literal["low", "value", "high"]
_ENDS: tuple[_End, ...] = ("low", "value", "high")


class _Search:
    """Shares that a method would have cut with its thresholds times some factors."""

    def __init__(self, method: Method, paths: Sequence[Path]) -> None:
        self._method, self._paths = method, paths
        self.measured: dict[float, Interval] = {}
        self._ids, self.unit, self._sizes = _clusters(paths)
        self.clusters, self.tokens = len(self._sizes), int(self._sizes.sum())
        if self.clusters < 2:
            raise ValueError("an interval needs at least 2 completions with an advantage.")

    def look(self, factors: Iterable[float]) -> None:
        """Measure the shares at some factors, in one pass over the log."""
        new = sorted({float(f) for f in factors} - self.measured.keys())
        methods = [scale_thresholds(self._method, factor) for factor in new]
        counts = np.zeros((len(new), self.clusters + 1), dtype=np.int64)
        first = 0
        for rows, batch in chunks(self._paths):
            ids = self._ids[first : (first := first + len(rows))]
            with torch.no_grad():
                for method, sums in zip(methods, counts, strict=True):
                    gated = batch.finite & ~method.surrogate(batch).kept  # [rows, time]
                    np.add.at(sums, ids, gated.sum(dim=1).numpy())
        for factor, sums in zip(new, counts, strict=True):
            self.measured[factor] = _share(sums[:-1], self._sizes)

    def bracket(self, share: float, end: _End) -> tuple[float, float]:
        """The largest factor at which an end of the interval is above a share, and the next."""
        factors = sorted(self.measured)
        # Shares fall as thresholds widen, but for chance in the interval's width.
        over = [f for f in factors if getattr(self.measured[f], end) > share]
        last = over[-1] if over else factors[0]
        beyond = [f for f in factors if f > last] if over else factors[:1]
        return last, beyond[0] if beyond else factors[-1]


def _share(gated: _Counts, tokens: _Counts) -> Interval:
    """Share of tokens gated with Student's interval, clustered: a ratio of two sums, linearised."""
    share = gated.sum() / tokens.sum()
    around = share + (gated - share * tokens) / tokens.mean()
    interval = RunSummary.of(around).interval()
    return Interval(float(share), max(interval.low, 0.0), min(interval.high, 1.0))


def _clusters(paths: Sequence[Path]) -> tuple[_Counts, str, _Counts]:
    """Number of each row's cluster, what clusters are, and the tokens of each cluster.

    Rows without tokens get the number after the last.
    """
    tokens: list[int] = []
    generations: list[int | None] = []
    prompts: list[int | None] = []
    for rows, batch in chunks(paths):
        tokens += batch.finite.sum(dim=1).tolist()
        generations += [row.step if row.generated is None else row.generated for row in rows]
        prompts += [row.group for row in rows]
    count = np.array(tokens, dtype=np.int64)  # [rows]
    candidates: dict[str, list[Any]] = {
        "generations": [None if g is None else (g,) for g in generations],
        "prompts": [
            None if p is None else (g, p) for g, p in zip(generations, prompts, strict=True)
        ],
        "completions": list(range(len(tokens))),
    }
    for unit, keys in candidates.items():
        there = dict.fromkeys(key for key, n in zip(keys, tokens, strict=True) if n)
        if None in there or (len(there) < _FEW and unit != "completions"):
            continue
        number = {key: i for i, key in enumerate(there)}
        ids = np.array([number[k] if n else len(number) for k, n in zip(keys, tokens, strict=True)])
        sizes = np.zeros(len(number) + 1, dtype=np.int64)
        np.add.at(sizes, ids, count)
        return ids, unit, sizes[:-1]
    raise AssertionError("completions are never refused")
