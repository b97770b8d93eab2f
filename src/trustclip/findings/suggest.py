"""The threshold at which a method would have cut a chosen share of the tokens of a log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from trustclip.constraints.base import Method
from trustclip.constraints.shadow import refusal
from trustclip.constraints.thresholds import scale_thresholds, thresholds, widest
from trustclip.logs.watched import chunks, supplied
from trustclip.support.text import percent

#: The search begins between these factors of the method's own thresholds, at so many of them.
_FACTORS, _FIRST = (1e-6, 1e6), 25
#: So many passes over the log follow, each with so many factors within a bracket.
_PASSES, _EACH = 4, 8


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
    # Four digits are more than a log supports, and what a person types.
    rounded = {name: float(f"{value:.4g}") for name, value in moved.items()}
    chosen = replace(method, **rounded)  # type: ignore[type-var]
    return Suggestion(chosen, moved, shares[at], tokens)


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
