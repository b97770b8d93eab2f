"""Entropy: whether it fell or rose beyond its noise, and what pushed it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, linear_regression

from trustclip.findings.course import Course
from trustclip.findings.facts import FALLEN, RISEN, SCATTERED
from trustclip.findings.finding import Finding
from trustclip.findings.rows import PREFIX, ends, mean, percent, values
from trustclip.support.jsonl import Row

#: Half the width of a 95 % interval in standard errors.
_NORMAL = 1.96


@dataclass(frozen=True)
class Change:
    """A change from the first to the last tenth of a series, with its 95 % interval.

    Args:
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
        if entropies := values(rows, "sampling_entropy"):
            errors, error = values(rows, "sampling_entropy_error"), scatter(entropies)
            if len(errors) == len(entropies) > 1:
                few = max(len(entropies) // 10, 1)
                error = sqrt(sum(e * e for e in (*errors[:few], *errors[-few:]))) / few
            what = "Entropy over all completions of a generation"
            return cls(what, *ends(entropies), error)
        for prefix in ("", PREFIX):
            if entropies := values(rows, "entropy", prefix=prefix):
                some = any(values(rows, "skipped"))
                what = "Entropy over the completions with an advantage" if some else "Entropy"
                return cls(what, *ends(entropies), scatter(entropies), whole=not some)
        return None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of the change."""
        if self.error is None:
            return None
        change = self.last - self.first
        return change - _NORMAL * self.error, change + _NORMAL * self.error

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out, of a change over all completions."""
        return self.whole and self.bounds is not None and self.bounds[0] * self.bounds[1] > 0

    def sentence(self, *, moved: bool = True) -> str:
        """The change in words; of a policy that did not move, its level alone."""
        if not moved:
            return f"{self.what} was {(self.first + self.last) / 2:.3g} nats per token."
        course = f"from {self.first:.3g} to {self.last:.3g} nats per token"
        change = 100 * (self.last / self.first - 1) if self.first > 0 else 0.0
        share = f"{change:+.0f} %" if abs(change) >= 1 else f"{change:+.1g} %"
        if not self.whole:
            text = f"{self.what} went {course}; each update has other ones, so this is no trend"
        elif self.bounds is None:
            text = f"{self.what} went {course} ({share}); an interval needs more values"
        elif not self.clear:
            text = f"{self.what} went {course}, which may be noise (change {self._interval()})"
        else:
            word = "fell" if self.last < self.first else "rose"
            text = f"{self.what} {word} {course} ({share}; change {self._interval()})"
        return text.replace("-", "−") + "."

    def _interval(self) -> str:
        low, high = self.bounds or (0.0, 0.0)
        return f"{self.last - self.first:+.2g} [{low:.2g}, {high:.2g}]"


def scatter(series: Sequence[float]) -> float | None:
    """Standard error of the difference of the ends of a series, from its scatter about a line.

    Example:
      >>> scatter([1.0, 0.9, 0.8]), round(scatter([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), 2)
      (None, 0.83)
    """
    n = len(series)
    if n < SCATTERED:
        return None
    slope, start = linear_regression(range(n), series)
    rest = sum((y - start - slope * i) ** 2 for i, y in enumerate(series)) / (n - 2)
    return sqrt(2 * rest / max(n // 10, 1))


def of_run(course: Course) -> Iterator[Finding]:
    """The change of the entropy, what pushed it, and whether that is a trouble."""
    change = Change.of_entropy(course.rows)
    if change is None:
        return
    text = change.sentence(moved=course.moved) + _push(course)
    if change.clear and course.moved and change.first > 0:
        if change.last < FALLEN * change.first:
            if course.solved or course.rose:
                yield Finding("entropy/solved", "ok", text)
            else:
                yield Finding("entropy/fell", "warning", text, _advice(course, change))
            return
        if change.last > RISEN * change.first:
            advice = (
                f"entropy rose to {change.last / change.first:.3g} times its start: look at the "
                "penalised tokens (A < 0), a lower bound on the ratio, and the sampler, before you "
                "lower the learning rate."
            )
            yield Finding("entropy/rose", "warning", text, advice)
            return
    yield Finding("entropy/course", "note", text)


def _push(course: Course) -> str:
    cut, kept = (values(course.full, f"entropy_slope/{name}") for name in ("cut", "kept"))
    if not (cut and kept) or fmean(cut) == 0:
        return ""
    return (
        f" To first order, the kept tokens {_direction(fmean(kept))} the entropy, and the cut "
        f"tokens would have {_direction(fmean(cut))} it "
        f"{abs(fmean(cut) / (fmean(kept) or 1)):.2g} times as much: "
        f"without the gate it would be {'higher' if fmean(cut) > 0 else 'lower'}."
    )


def _direction(slope: float) -> str:
    return "raised" if slope > 0 else "lowered"


def _advice(course: Course, change: Change) -> str:
    rising = values(course.rows, "gated/positive_above")
    if not rising:
        share = percent(change.last / change.first)
        return (
            f"entropy fell to {share} of its start: try a wider upper bound (clip_higher), a "
            "smaller learning rate, or an entropy bonus."
        )
    if fmean(rising) > mean(course.rows, "gated") / 2:
        return (
            "entropy has fallen by more than half, and the gate mostly cuts rewarded tokens whose "
            "probability rises: try a wider upper bound (clip_higher, or atr with a larger delta)."
        )
    return (
        "entropy has fallen by more than half, and the gate is not the cause: try a smaller "
        "learning rate or an entropy bonus before another threshold."
    )
