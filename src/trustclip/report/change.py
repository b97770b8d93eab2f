"""A change over a run with its interval: of the entropy over all completions; of the reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import linear_regression

from trustclip.report.rows import PREFIX, ends, values
from trustclip.runs.jsonl import Row
from trustclip.runs.thresholds import IMPROVED


def moved(rows: Sequence[Row]) -> bool:
    """Whether any update had a gradient; where none is logged, whether any group could have one."""
    if gradients := values(rows, "grad_norm", prefix=""):
        return any(gradients)
    equal = values(rows, "frac_reward_zero_std", prefix="")
    return not equal or min(equal) < 1


@dataclass(frozen=True)
class Change:
    """A change from the first to the last tenth of a series, with its 95 % interval.

    Args:
      what: is measured.
      first: mean of the first tenth, at least one value.
      last: of the last.
      error: standard error of their difference; None where nothing is known of it.
      whole: whether it is over all completions.
    """

    what: str
    first: float
    last: float
    error: float | None
    whole: bool = True

    @classmethod
    def of_entropy(cls, rows: Sequence[Row]) -> "Change | None":
        """That of the entropy over all completions, or, in older logs, over what they have."""
        if found := values(rows, "sampling_entropy"):
            few = max(len(found) // 10, 1)
            errors = values(rows, "sampling_entropy_error")
            error = None
            if len(errors) == len(found) > 1:
                error = sqrt(sum(e * e for e in (*errors[:few], *errors[-few:]))) / few
            what = "Entropy over all completions of a generation"
            return cls(what, *ends(found), error if error is not None else scatter(found))
        for prefix in ("", PREFIX):
            if found := values(rows, "entropy", prefix=prefix):
                some = any(values(rows, "skipped"))
                what = "Entropy over the completions with an advantage" if some else "Entropy"
                return cls(what, *ends(found), scatter(found), whole=not some)
        return None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of the change."""
        if self.error is None:
            return None
        change = self.last - self.first
        return change - 1.96 * self.error, change + 1.96 * self.error

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out, of a change over all completions."""
        return self.whole and self.bounds is not None and self.bounds[0] * self.bounds[1] > 0

    def sentence(self, *, moved: bool = True) -> str:
        """The change in words; of a policy that did not move, its level alone."""
        if not moved:
            return f"{self.what} was {(self.first + self.last) / 2:.3g} nats per token."
        course = f"from {self.first:.3g} to {self.last:.3g} nats per token"
        share = f"{100 * (self.last / self.first - 1):+.0f} %" if self.first > 0 else ""
        if not self.whole:
            text = f"{self.what} went {course}, which are others in each update: no trend"
        elif self.bounds is None:
            text = f"{self.what} went {course} ({share}), too few values for an interval"
        elif not self.clear:
            text = f"{self.what} went {course}, within its noise (change {self._interval()})"
        else:
            word = "fell" if self.last < self.first else "rose"
            text = f"{self.what} {word} {course} ({share}; change {self._interval()})"
        return text.replace("-", "−") + "."

    def _interval(self) -> str:
        low, high = self.bounds or (0.0, 0.0)
        return f"{self.last - self.first:+.2g} [{low:.2g}, {high:.2g}]"


def scatter(found: Sequence[float]) -> float | None:
    """Standard error of the difference of the ends of a series, from its scatter about a line.

    Example:
      >>> scatter([1.0, 0.9, 0.8]), round(scatter([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), 2)
      (None, 0.83)
    """
    n = len(found)
    if n < 4:
        return None
    slope, start = linear_regression(range(n), found)
    rest = sum((y - start - slope * i) ** 2 for i, y in enumerate(found)) / (n - 2)
    return sqrt(2 * rest / max(n // 10, 1))


def improved(rows: Sequence[Row]) -> bool:
    """Whether the reward has at least doubled from the first to the last tenth of the updates."""
    reward = values(rows, "reward", prefix="")
    if not reward:
        return False
    first, last = ends(reward)
    return last > 0 and last >= IMPROVED * first
