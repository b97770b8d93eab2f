"""Figures as data, drawn in the page and on paper from the same description."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

#: Okabe and Ito's colours, told apart under every common colour blindness; on a light ground.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
#: The same hues on a dark ground.
DARK_PALETTE = ("#4EA8DE", "#F2844B", "#33BF96", "#E39BC4", "#F0B84A", "#9AD4F5", "#B8B8B8")
#: Colours of grids, and of axes and what belongs to no group.
GRID, QUIET = "#dfd9cc", "#6a655c"
#: Each round through the palette has a dash of its own, by Matplotlib's names.
DASHES = ("-", "--", ":", "-.")
#: This number stands for the colour of what belongs to no group.
NEUTRAL = -1

#: Points of a drawn line: more could not be told apart.
POINTS = 400
#: Longest window of the moving average, updates: the paper's.
WINDOW = 100

#: Bands of more groups than this, one over the other, say nothing.
BANDS = 3

Style = Literal["line", "faint", "dashed", "band", "area", "points"]


@dataclass(frozen=True)
class Mark:
    """One thing drawn.

    Args:
      style: ``"line"``; ``"faint"``, a line behind another; ``"dashed"``, a bound; ``"band"``
        from `low` to `high`; ``"area"``, stacked on the areas before it; ``"points"``, with
        whiskers from `low` to `high` where given.
      x: places; text for a category.
      low: lower values of a band or of whiskers.
      high: upper values.
      group: number of the group that it appears and disappears with; that of its colour if None.
    """

    style: Style
    x: Sequence[float | str]
    y: Sequence[float | None]
    name: str
    series: int
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    group: int | None = None

    @property
    def dash(self) -> str:
        """Dash of its line; that of a neutral one is solid."""
        return DASHES[0 if self.series == NEUTRAL else self.series // len(PALETTE) % len(DASHES)]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
      marks: from back to front.
      log_x: whether x is logarithmic.
      x_range: of the axis; from the data where None.
      y_range: of the axis; from 0 to the highest value where None.
      across: whether points lie across: values on x, categories on y.
      ticks: places of x that are labelled; chosen where empty.
      rule: value of x with a thin line through it.
      group: number of the only group shown, where there is one.
    """

    title: str
    x_title: str
    y_title: str
    marks: Sequence[Mark]
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    across: bool = False
    ticks: Sequence[float] = ()
    rule: float | None = None
    group: int | None = None


@dataclass(frozen=True)
class Figure:
    """Panels with a caption."""

    key: str
    title: str
    caption: str
    panels: Sequence[Panel]


def in_percent(estimates: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Values of estimates, intervals or differences, and their bounds; None where not known."""
    value, low, high = (
        [None if (one := getattr(e, name)) is None else 100 * one for e in estimates]
        for name in ("value", "low", "high")
    )
    return value, low, high


def figure(key: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure | None:
    """A figure, where there is something to draw."""
    return Figure(key, title, caption, panels) if panels else None


def window_of(steps: int) -> int:
    """Window of the moving average of a run: a tenth of it, at most the paper's 100 updates.

    Example:
      >>> window_of(1000), window_of(96), window_of(7)
      (100, 10, 1)
    """
    return max(1, min(WINDOW, round(steps / 10)))


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and those before it, ``window`` of them together.

    Example:
      >>> moving_mean([1, 2, 3, 4], 2)
      [1.0, 1.5, 2.5, 3.5]
    """
    total = np.cumsum(np.concatenate([[0.0], np.asarray(values, dtype=float)]))
    end = np.arange(1, len(total))
    start = np.maximum(end - window, 0)
    return ((total[end] - total[start]) / (end - start)).tolist()


def sample_indices(length: int) -> list[int]:
    """At most `POINTS` of the indices of a line, evenly, with both ends.

    Example:
      >>> sample_indices(3), len(sample_indices(10_000)), sample_indices(10_000)[-1]
      ([0, 1, 2], 400, 9999)
    """
    if length <= POINTS:
        return list(range(length))
    return np.unique(np.linspace(0, length - 1, POINTS).round().astype(int)).tolist()
