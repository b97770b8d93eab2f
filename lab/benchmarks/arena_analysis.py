"""What the arena's runs say: scores over tasks, fixed contrasts, tuning curves, collapses.

Every interval is over seeds. The runs of one seed (in several tasks and depths, of several
constraints) share problems or random numbers, so they are first averaged, or subtracted from each
other, seed by seed; the seeds themselves are independent.

In one file because a contrast, its settings and its standing share one way to pair runs by seed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
from arena_scores import Heterogeneity, adjusted_runs, heterogeneity, improvement, profile
from numpy.typing import NDArray
from paired_rates import paired_rates

from trustclip import stats
from trustclip.stats import curves
from trustclip.stats.scores import Floats
from trustclip_lab.stats.aggregates import interquartile_interval
from trustclip_lab.stats.equivalence import Contrast, contrasts, paired_runs

#: What identifies the cell of a run in the design.
CELL = ("task", "depth")
#: Difference that would matter: one point, as a share of 1.
MARGIN = 0.01
#: What the contrasts are about that were fixed beforehand: all tasks and depths.
ALL = "all settings"
#: Thresholds of a performance profile.
THRESHOLDS = np.linspace(0, 1, 101)


class Runs:
    """Rows of the arena's table, as columns.

    Args:
      columns: name -> values, one for each run.

    Example:
      >>> runs = Runs({"task": ["a", "a", "b"], "seed": [1, 2, 1], "end": [0.1, 0.3, 0.5]})
      >>> len(runs), runs.values("task"), runs.where(task="a").mean("end")
      (3, ['a', 'b'], 0.2)
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns: dict[str, NDArray[Any]] = {k: np.asarray(v) for k, v in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def at(self, index: Any) -> "Runs":
        """The runs at these places."""
        return Runs({name: values[index] for name, values in self.columns.items()})

    def where(self, **values: Any) -> "Runs":
        """The runs with these values; a list matches any of its values."""
        mask = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            mask &= np.isin(self[name], value) if isinstance(value, list) else self[name] == value
        return self.at(mask)

    def values(self, name: str) -> list[Any]:
        """Values of a column, each once, in order of appearance."""
        return list(dict.fromkeys(self[name].tolist()))

    def mean(self, name: str) -> float:
        """Mean of a column; nan without runs."""
        return float(self[name].mean()) if len(self) else nan

    def by(self, *names: str) -> dict[tuple[Any, ...], "Runs"]:
        """Runs by the values of some columns, in order of appearance; nan is a value."""
        indices: dict[tuple[Any, ...], list[int]] = {}
        for place, key in enumerate(zip(*(self[name].tolist() for name in names), strict=True)):
            key = tuple("" if part != part else part for part in key)
            indices.setdefault(key, []).append(place)
        return {key: self.at(places) for key, places in indices.items()}

    @cached_property
    def constraints(self) -> dict[str, "Runs"]:
        """Runs of each constraint by its label, in order of appearance."""
        return {label: own for (label,), own in self.by("constraint").items()}

    @cached_property
    def cells(self) -> list[tuple[Any, ...]]:
        """Tasks with their depths, in order of appearance."""
        return list(self.by(*CELL))

    def matrix(self, column: str, cells: Sequence[tuple[Any, ...]]) -> dict[int, Floats]:
        """Seed -> values in these cells, in order; of the seeds that have one in each.

        Raises:
          ValueError: a seed has several runs in a cell.
        """
        place = {cell: i for i, cell in enumerate(cells)}
        rows: dict[int, Floats] = {}
        names = (*CELL, "seed", column)
        for *cell, seed, value in zip(*(self[name].tolist() for name in names), strict=True):
            i = place.get(tuple(cell))
            if i is None:
                continue
            row = rows.setdefault(int(seed), np.full(len(cells), np.nan))
            if not np.isnan(row[i]):
                raise ValueError(f"seed {seed} has several runs in {cell}")
            row[i] = value
        return {seed: row for seed, row in sorted(rows.items()) if not np.isnan(row).any()}


def seed_mean(runs: Runs, column: str, level: float = 0.95) -> stats.Interval:
    """Mean of a column over cells and seeds; each seed is averaged over its cells first.

    Args:
      runs: of one constraint.
      column: name of the numbers.
      level: confidence, in (0, 1).
    """
    rows = runs.matrix(column, runs.cells)
    values = [float(row.mean()) for row in rows.values()]
    if len(values) < 2:
        return stats.Interval(values[0] if values else nan, nan, nan)
    return stats.RunSummary.of(values).interval(level)


def differences(ours: Runs, theirs: Runs, column: str = "end") -> stats.RunSummary:
    """Ours minus theirs, seed by seed: each the mean over the cells that both have.

    Raises:
      ValueError: fewer than two seeds have both.

    Example:
      >>> cell = {"task": ["a"] * 2, "depth": [4] * 2, "seed": [1, 2]}
      >>> ours, theirs = (Runs({**cell, "end": end}) for end in ([0.5, 0.6], [0.4, 0.2]))
      >>> print(f"{differences(ours, theirs).mean:.2f}")
      0.25
    """
    return stats.RunSummary.of([*_gaps(ours, theirs, column).values()])


def _gaps(ours: Runs, theirs: Runs, column: str) -> dict[int, float]:
    """Differences by seed, means over the cells that both have."""
    cells = [cell for cell in ours.cells if cell in theirs.cells]
    a, b = ours.matrix(column, cells), theirs.matrix(column, cells)
    return {seed: float((a[seed] - b[seed]).mean()) for seed in a if seed in b}


def at_equal_score(ours: Runs, theirs: Runs, column: str = "entropy") -> stats.Difference:
    """Ours minus theirs in a column, at equal scores at the end; see `adjusted_runs`."""
    gaps, ends = _gaps(ours, theirs, column), _gaps(ours, theirs, "end")
    return adjusted_runs(np.array([*gaps.values()]), np.array([ends[seed] for seed in gaps]))


def _tasks(runs: Runs, column: str) -> list[Floats]:
    """Values of each task, [seeds, depths]."""
    cells: dict[Any, list[tuple[Any, ...]]] = {}
    for cell in runs.cells:
        cells.setdefault(cell[0], []).append(cell)
    return [np.array([*runs.matrix(column, own).values()]) for own in cells.values()]


#: Columns that two runs with the same gradients have in common.
OUTCOME = (
    "start", "end", "best", "area", "collapsed", "fell", "time", "passk", "entropy", "k3", "gated",
)  # fmt: skip


def identical(ours: Runs, theirs: Runs) -> tuple[int, int]:
    """How many pairs of runs of the same seed and cell are the same, and of how many.

    Example:
      >>> cell = {"task": ["a"], "depth": [4], "seed": [1]}
      >>> runs = Runs(cell | {name: [0.5] for name in OUTCOME})
      >>> identical(runs, runs), identical(runs, Runs({**runs.columns, "end": [0.25]}))
      ((1, 1), (0, 1))
    """
    key = (*CELL, "seed")
    rows = [
        dict(zip(zip(*(r[n].tolist() for n in key), strict=True),
                 np.stack([r[n] for n in OUTCOME], axis=1), strict=True))
        for r in (ours, theirs)
    ]  # fmt: skip
    shared = rows[0].keys() & rows[1].keys()
    same = sum(np.array_equal(rows[0][k], rows[1][k], equal_nan=True) for k in shared)
    return same, len(shared)


@dataclass(frozen=True)
class Standing:
    """A constraint over all tasks and depths of a design.

    Args:
      constraint: its label.
      end: mean score at the end.
      middle: interquartile mean of it.
      area: mean of all evaluations of a run, the area under its learning curve.
      minus: end minus the reference's, paired by seed; None for that itself.
      better: probability of improvement on the reference.
      collapsed: share of runs.
      standing: mean end of the runs that did not collapse.
      reached: share of runs that reached their task's threshold.
      time: mean generations until then, those that never did counted to the end.
      passk: mean Pass@K.
      seconds: CPU seconds of a run.
    """

    constraint: str
    end: stats.Interval
    middle: stats.Interval
    area: stats.Interval
    minus: stats.Difference | None
    better: stats.Interval | None
    collapsed: stats.Interval
    standing: float
    reached: stats.Interval
    time: float
    passk: stats.Interval
    seconds: float


def standings(runs: Runs, reference: str) -> list[Standing]:
    """Every constraint of a design, the highest score first.

    Args:
      runs: test runs of one design.
      reference: constraint that the others are compared with.
    """
    by = runs.constraints
    board = [_standing(name, own, by[reference], name == reference) for name, own in by.items()]
    return sorted(board, key=lambda one: -one.end.value)


def _standing(name: str, own: Runs, reference: Runs, itself: bool) -> Standing:
    ends = _tasks(own, "end")
    up = own.at(own["collapsed"] == 0)
    return Standing(
        constraint=name,
        end=seed_mean(own, "end"),
        middle=interquartile_interval(ends),
        area=seed_mean(own, "area"),
        minus=None if itself else paired_runs(differences(own, reference)),
        better=None if itself else improvement(ends, _tasks(reference, "end")),
        collapsed=rate(own, "collapsed"),
        standing=up.mean("end"),
        reached=rate(own, "reached"),
        time=restricted_time(own),
        passk=seed_mean(own, "passk"),
        seconds=own.mean("seconds"),
    )


def rate(runs: Runs, column: str) -> stats.Interval:
    """Share of runs with 1 in a column, or that reached the threshold; clustered by seed."""
    values = ~np.isnan(runs["time"]) if column == "reached" else runs[column]
    rows: dict[int, list[int]] = {}
    for seed, value in zip(runs["seed"].tolist(), values.tolist(), strict=True):
        rows.setdefault(seed, []).append(int(value))
    return stats.mean_interval([*rows.values()])


def restricted_time(runs: Runs) -> float:
    """Restricted mean time to the threshold: a run that never reached it counts as long as it ran.

    All runs of a cell are equally long, so this is Kaplan and Meier's restricted mean.
    """
    return float(curves.restricted(runs["time"], runs["generations"]).mean()) if len(runs) else nan


@dataclass(frozen=True)
class Question:
    """A comparison that was fixed before the runs.

    Args:
      asks: what it is about, in a few words.
      ours: constraint.
      theirs: the one that it is compared with.
    """

    asks: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Answer:
    """What the runs say to a question.

    Args:
      question: the question.
      scope: `ALL`, or one of the depths.
      seeds: that both have.
      contrast: ours minus theirs at the end, with both tests and the conclusion.
      better: probability of improvement.
      collapse: collapse rate of ours minus that of theirs, of the same seeds.
      area: difference of the areas under the learning curves.
      settings: the same difference in each task and depth of the scope, over seeds.
      margin: of equivalence, a share of 1.
    """

    question: Question
    scope: str
    seeds: int
    contrast: Contrast
    better: stats.Interval
    collapse: stats.Difference
    area: stats.Difference
    settings: Mapping[tuple[Any, ...], stats.RunSummary] = field(default_factory=dict)
    margin: float = MARGIN

    @cached_property
    def heterogeneity(self) -> Heterogeneity:
        """Whether the difference is the same in all settings."""
        return heterogeneity([*self.settings.values()])

    @property
    def one_number(self) -> bool:
        """Whether nothing speaks against the same difference in all settings, at 5 %."""
        return not self.heterogeneity.p <= 0.05


def answers(
    runs: Runs, questions: Sequence[Question], scope: str = ALL, margin: float = MARGIN
) -> list[Answer]:
    """Answer questions with the runs of one scope; Holm's correction is over the questions.

    Args:
      runs: test runs of one design.
      questions: those whose constraints have no runs are left out.
      scope: name of what the runs are of.
      margin: the smallest difference that would matter, a share of 1.
    """
    by = runs.constraints
    questions = [q for q in questions if q.ours in by and q.theirs in by]
    gaps = [differences(by[q.ours], by[q.theirs]) for q in questions]
    return [
        replace(_answer(q, scope, gap.runs, contrast, (by[q.ours], by[q.theirs])), margin=margin)
        for q, gap, contrast in zip(questions, gaps, contrasts(gaps, margin), strict=True)
    ]


def _answer(
    question: Question, scope: str, seeds: int, contrast: Contrast, pair: tuple[Runs, Runs]
) -> Answer:
    ours, theirs = pair
    cells = [cell for cell in ours.cells if cell in theirs.cells]
    fallen = [runs.matrix("collapsed", cells) for runs in pair]
    shared = sorted(fallen[0].keys() & fallen[1].keys())
    one, other = (np.concatenate([rows[seed] for seed in shared]) for rows in fallen)
    return Answer(
        question,
        scope,
        seeds,
        contrast,
        improvement(_tasks(ours, "end"), _tasks(theirs, "end")),
        paired_rates(one, other),
        paired_runs(differences(ours, theirs, "area")),
        {cell: differences(within(ours, {cell}), within(theirs, {cell})) for cell in cells},
    )


def answers_by(column: str, runs: Runs, questions: Sequence[Question]) -> dict[str, list[Answer]]:
    """Answers over all settings, which were fixed beforehand, and at each, which describe.

    Args:
      column: what the settings are divided by, ``depth`` or ``task``.
      runs: test runs of one design.
      questions: the contrasts.
    """
    parts = {f"{column} {value}": own for (value,), own in sorted(runs.by(column).items())}
    return {name: answers(own, questions, name) for name, own in ({ALL: runs} | parts).items()}


def complete_runs(runs: Runs, constraints: Collection[str], seeds: int) -> Runs:
    """Runs of the cells, tasks at a depth, in which every constraint has every seed.

    Args:
      runs: test runs of one design.
      constraints: those of the plan.
      seeds: how many the plan has.
    """
    counts = {key: len(own) for key, own in runs.by("constraint", *CELL).items()}
    whole = {
        cell for cell in runs.cells if all(counts.get((c, *cell)) == seeds for c in constraints)
    }
    return within(runs, whole)


def within(runs: Runs, cells: Collection[tuple[Any, ...]]) -> Runs:
    """The runs of these cells."""
    places = zip(*(runs[name].tolist() for name in CELL), strict=True)
    return runs.at([place for place, cell in enumerate(places) if cell in cells])


def profiles(runs: Runs) -> dict[str, list[stats.Interval]]:
    """Performance profile of each constraint at `THRESHOLDS`."""
    return {
        label: profile(_tasks(own, "end"), THRESHOLDS) for label, own in runs.constraints.items()
    }
