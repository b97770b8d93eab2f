"""Settings of the arena: tasks, depths, constraints with their thresholds, seeds, contrasts."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trustclip.support.checked import Count, Positive, Share, Whole, checked
from trustclip.support.names import unknown
from trustclip.support.settings import Complaint
from trustclip.train.suite.settings import LABEL

#: Settings of the lab that the arena sets itself.
OWN = (
    "name", "output_dir", "task", "depth", "method", "methods", "sweep", "reference", "seeds",
    "first_seed", "learning_rate",
)  # fmt: skip

#: Design of the runs that no axis has changed.
MAIN = "main"

Pair = Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
Changes = dict[str, Any]


@checked
class TaskSettings:
    """A task of the arena."""

    reaches: Share
    """Score whose first generation is reported as the time."""
    changes: Changes = field(default_factory=dict)
    """Settings of the lab for it."""


@checked
class Seeds:
    """Seeds in a row."""

    first: Whole
    """The first."""
    count: Count
    """How many."""

    @property
    def numbers(self) -> range:
        """The seeds."""
        return range(self.first, self.first + self.count)


@checked
class Axis:
    """One thing changed at one task and depth, with the trials that were chosen without it."""

    task: str
    """Task."""
    depth: Count
    """Updates per generation."""
    changes: Changes
    """Settings of the lab."""


@checked
class ArenaSettings:
    """Constraints tuned with the same budget, compared on fresh seeds."""

    name: Annotated[str, Field(min_length=1)] = "arena"
    """Title."""
    output_dir: Path = Path("runs/arena")
    """Folder of the runs and of their table."""
    lab: Changes = field(default_factory=dict)
    """Settings of the lab for every run."""
    tasks: dict[str, TaskSettings] = field(default_factory=dict)
    """Tasks of the lab, each with its own settings and the score whose time is reported."""
    depths: dict[Count, Changes] = field(default_factory=dict)
    """Updates per generation, each with its own settings."""
    learning_rates: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Learning rates that every threshold is tried at."""
    tuning: Seeds
    """Seeds that each constraint's trial is chosen on."""
    test: Seeds
    """Fresh seeds that the chosen trials are reported on."""
    constraints: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Constraints by label: a method whose lists are its thresholds, or `bounds_of` another; with
    `trials_of`, it is not tuned but tested at the other's threshold and learning rate."""
    axes: dict[str, Axis] = field(default_factory=dict)
    """Further designs by label."""
    reference: str | None = None
    """Constraint that the others are compared with; the first one when unset."""
    contrasts: dict[str, Pair] = field(default_factory=dict)
    """Questions fixed before the runs: what is asked, and two constraints."""
    controls: dict[str, Pair] = field(default_factory=dict)
    """Pairs whose runs must be the same to the last digit."""
    jobs: Count = 1
    """Processes at once."""

    def __post_init__(self) -> None:
        error = next((text for _, text in _errors(self)), None)
        if error:
            raise ValueError(error)

    @property
    def against(self) -> str:
        """The reference."""
        return self.reference or next(iter(self.constraints))

    @property
    def grid(self) -> tuple[float, ...]:
        """Learning rates in rising order."""
        return tuple(sorted(self.learning_rates))


def _errors(s: ArenaSettings) -> Iterator[Complaint]:
    """Every contradiction between fields, and every field that must not be empty."""
    for name in ("tasks", "depths", "constraints"):
        if not getattr(s, name):
            yield (name,), f"`{name}` should have at least one entry."
    if len(set(s.learning_rates)) < len(s.learning_rates):
        yield ("learning_rates",), f"`learning_rates` has a duplicate: {list(s.learning_rates)}."
    if set(s.tuning.numbers) & set(s.test.numbers):
        yield ("test",), "`test` seeds must be fresh: some of them are `tuning` seeds."
    names = [("constraint", one, s.constraints) for one in _references(s)]
    names += [("task", one.task, s.tasks) for one in s.axes.values()]
    for kind, name, valid in names:
        if name not in valid:
            yield ("constraints",), unknown(kind, name, valid)
    for label, axis in s.axes.items():
        if axis.depth not in s.depths:
            problem = unknown(
                "depth", str(axis.depth), map(str, s.depths), of=f"the axis {label!r}"
            )
            yield ("axes",), problem
        if label == MAIN:
            yield ("axes",), f"an axis cannot be called {MAIN!r}: that is the design without one."
    own = [label for label, spec in s.constraints.items() if "trials_of" not in spec]
    for label, spec in s.constraints.items():
        if "trials_of" in spec and spec["trials_of"] not in own:
            problem = unknown("constraint with trials of its own", spec["trials_of"], own)
            yield ("constraints", label), f"constraint {label!r}: {problem}"
    for label in (*s.constraints, *s.axes):
        if not LABEL.fullmatch(label):
            text = f"the label {label!r} names a file: use letters, digits and, not first, ._+-"
            yield ("constraints",), text
    for changes in _changes(s):
        for name in changes:
            if name in OWN:
                yield ("lab",), f"`{name}` cannot be changed here: the arena sets it itself."


def _references(s: ArenaSettings) -> list[str]:
    pairs = [*s.contrasts.values(), *s.controls.values()]
    return [*([s.reference] if s.reference else []), *(name for pair in pairs for name in pair)]


def _changes(s: ArenaSettings) -> Iterator[Mapping[str, Any]]:
    yield s.lab
    yield from (task.changes for task in s.tasks.values())
    yield from s.depths.values()
    yield from (axis.changes for axis in s.axes.values())


def finer(rates: tuple[float, ...], times: int) -> list[float]:
    """``len(rates)`` x ``times`` rates, evenly spaced in the logarithm from the least to the most.

    Example:
      >>> [round(rate, 5) for rate in finer((0.001, 0.004), 2)]
      [0.001, 0.00159, 0.00252, 0.004]
    """
    low, high, count = math.log(min(rates)), math.log(max(rates)), len(rates) * times
    return [math.exp(low + (high - low) * i / max(count - 1, 1)) for i in range(count)]
