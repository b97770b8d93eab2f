"""Figures from logged rows: the values of a metric, their mean, and a share in words."""

from collections.abc import Sequence
from math import isfinite
from statistics import fmean

from trustclip.support.jsonl import Row

#: The names of metrics that are ours alone begin with this.
PREFIX = "trustclip/"


def values(rows: Sequence[Row], name: str, prefix: str = PREFIX) -> list[float]:
    """The finite values of a metric, in the order of the rows."""
    column = [row.get(prefix + name) for row in rows]
    return [v for v in column if isinstance(v, int | float) and isfinite(v)]


def mean(rows: Sequence[Row], name: str) -> float:
    """Mean of one of our metrics; 0 where it was not logged."""
    column = values(rows, name)
    return fmean(column) if column else 0.0


def over_tokens(rows: Sequence[Row], name: str) -> tuple[float, int | None]:
    """A share of tokens of one kind over all updates, and the number of such tokens.

    Where an update did not log how many tokens it has of that kind, every update counts alike and
    the number is None.

    Example:
      >>> few = {"trustclip/gated/p_old_0_0.01": 1.0, "trustclip/tokens/p_old_0_0.01": 10}
      >>> many = {"trustclip/gated/p_old_0_0.01": 0.0, "trustclip/tokens/p_old_0_0.01": 90}
      >>> over_tokens([few, many], "gated/p_old_0_0.01")
      (0.1, 100)
    """
    share, count = PREFIX + name, PREFIX + name.replace("gated", "tokens", 1)
    pairs = [(row[share], row[count]) for row in rows if share in row and row.get(count)]
    if count == share or not pairs:
        return mean(rows, name), None
    tokens = sum(n for _, n in pairs)
    return sum(value * n for value, n in pairs) / tokens, round(tokens)


def percent(share: float) -> str:
    """A share in percent, to two digits.

    Example:
      >>> percent(0.02345), percent(0), percent(1e-5), percent(0.997)
      ('2.3 %', '0 %', 'under 0.01 %', '100 %')
    """
    if 0 < share < 1e-4:
        return "under 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def ends(series: Sequence[float]) -> tuple[float, float]:
    """Means of the first and of the last tenth of values."""
    few = max(len(series) // 10, 1)
    return fmean(series[:few]), fmean(series[-few:])
