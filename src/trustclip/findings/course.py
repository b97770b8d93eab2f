"""The figures of one run that its findings rest on: of a run directory, or of another's log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trustclip.constraints.base import Method, Trait
from trustclip.constraints.registry import as_method
from trustclip.findings.facts import IMPROVED, SOLVED
from trustclip.findings.rows import PREFIX, ends, mean, values
from trustclip.findings.scores import rose
from trustclip.logs.log import Log
from trustclip.logs.run import Run
from trustclip.support.consent import consent
from trustclip.support.jsonl import Row


@dataclass(frozen=True)
class Course:
    """A run, and what several subjects ask of it."""

    run: Run

    @property
    def log(self) -> Log | None:
        """The log, of another trainer's run."""
        return self.run.log

    @property
    def rows(self) -> Sequence[Row]:
        """All updates."""
        return self.run.training

    @cached_property
    def full(self) -> list[Row]:
        """The updates that have our own metrics of a constraint."""
        mark = PREFIX + ("gated" if self.log is None else "off_policy")
        if self.log is None and self.run.method is None:
            return []
        return [row for row in self.rows if mark in row]

    @cached_property
    def method(self) -> Method | None:
        """The method, where it is one of the library's or may be imported."""
        return self._method if isinstance(self._method, Method) else None

    @property
    def unreadable(self) -> str:
        """Why the method that the run names cannot be read; empty where it can."""
        return self._method if isinstance(self._method, str) else ""

    @cached_property
    def _method(self) -> Method | str | None:
        try:
            with consent():
                return as_method(self.run.method) if self.run.method else None
        except (ValueError, TypeError) as error:
            return str(error)

    @property
    def cuts(self) -> bool:
        """Whether the method cuts tokens, as far as is known."""
        return self.method is None or Trait.CUTS in self.method.traits

    @cached_property
    def gated(self) -> dict[int, float]:
        """Share of tokens cut by update, where it was logged."""
        rows = self.rows if self.log else self.full
        shares = {row["step"]: row.get(PREFIX + "gated") for row in rows}
        return {step: float(share) for step, share in shares.items() if share is not None}

    @cached_property
    def cut(self) -> float:
        """Mean share of tokens cut."""
        return mean(self.rows if self.log else self.full, "gated")

    @property
    def unit(self) -> str:
        """What a row is: verl and prime-rl log a row for all updates of a generation."""
        return "update" if self.log is None or self.log.trainer == "TRL" else "step"

    @property
    def row(self) -> str:
        """A row in words; with `logging_steps` above 1 there are fewer of them than updates."""
        few = self.unit == "update" and self.run.last_step > len(self.rows)
        return f"logged {self.unit}" if few else self.unit

    @cached_property
    def moved(self) -> bool:
        """Whether any update had a gradient; without one logged, whether any group could have."""
        if gradients := values(self.rows, "grad_norm", prefix=""):
            return any(gradients)
        equal = values(self.rows, "frac_reward_zero_std", prefix="")
        return not equal or min(equal) < 1

    @cached_property
    def reward(self) -> list[float]:
        """The mean rewards that were logged."""
        return values(self.rows, "reward", prefix="")

    @cached_property
    def completions(self) -> Mapping[int, int]:
        """How many completions each generation has, by the updates before it; of our own runs."""
        groups = (place.group for place in self.run.samples.places.values())
        return Counter(step for stage, step, _ in groups if stage == "rl")

    @property
    def solved(self) -> bool:
        """Whether the reward ends where little is left to learn."""
        return bool(self.reward) and ends(self.reward)[1] > SOLVED

    @property
    def rose(self) -> bool:
        """Whether the score has risen beyond its interval, or the reward by `IMPROVED`."""
        first, last = ends(self.reward) if self.reward else (0.0, 0.0)
        return rose(self.run.evaluations) or (last > 0 and last >= IMPROVED * first)
