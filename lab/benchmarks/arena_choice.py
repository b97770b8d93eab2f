r"""What the choice of trials adds to a contrast.

A contrast of tuned constraints is measured at the trials that the tuning seeds chose. An interval
over test seeds holds these fixed: it says how well that one difference is known, and not what
another tuning, on as many other seeds, would have led to. Both together have the variance

.. math:: s_{test}^2 + s_{choice}^2,

since test seeds are none of the tuning's. The second term is estimated by choosing again from
tuning seeds drawn with replacement. In simulated tunings of the committed arena the interval of
both covers what tunings lead to on average in 93 % of cases with 16 tuning seeds, that of the test
alone in 70 % (``lab/benchmarks/arena_coverage.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

import numpy as np
from arena_analysis import CELL, Question, Runs, differences
from arena_tuning import TRIAL
from numpy.typing import NDArray

from trustclip.stats import Difference
from trustclip.stats.scores import Floats
from trustclip_lab.stats.equivalence import paired_runs

#: Times that the choice is repeated.
DRAWS = 1000
#: Fewest tuning seeds from which another choice can be imagined; with 3 the interval covers 87 %.
FEWEST = 8
#: Numbers of tuning seeds that a tuning with more of them is compared with.
FEWER = (1, 3)


@dataclass(frozen=True)
class Choice:
    """A contrast with the choice of its trials counted.

    Args:
      question: the contrast.
      both: ours minus theirs at the end, with an interval and p over test seeds and choices.
      again: share of tunings, of ours and of theirs, that choose the same trial in a cell.
      spread: standard deviation of the contrast over tunings on as many seeds.
      fewer: the same by a smaller number of tuning seeds.
    """

    question: Question
    both: Difference
    again: tuple[float, float]
    spread: float
    fewer: Mapping[int, float]


def choices(
    trials: Runs, tests: Runs, questions: Sequence[Question], draws: int = DRAWS
) -> list[Choice]:
    """Count the choice of trials in contrasts.

    Args:
      trials: tuning runs of one design.
      tests: its test runs.
      questions: those without runs of either kind are left out.
      draws: how often the choice is repeated.

    Returns:
      One for each question; none with fewer than `FEWEST` tuning seeds.
    """
    seeds = trials.values("seed")
    if len(seeds) < FEWEST:
        return []
    by, rng, count = tests.constraints, np.random.default_rng(0), len(seeds)
    seed_counts = {count: rng.multinomial(count, [1 / count] * count, size=draws).astype(float)}
    for k in FEWER:
        if 4 * k <= count:  # subsets of the seeds, as counts
            seed_counts[k] = (rng.random((draws, count)).argsort(axis=1) < k).astype(float)
    questions = [
        q for q in questions if {q.ours, q.theirs} <= by.keys() & trials.constraints.keys()
    ]
    scores = {
        name: [*cell_scores(trials.constraints[name], seeds)]
        for name in dict.fromkeys(name for q in questions for name in (q.ours, q.theirs))
    }
    ends = {
        name: {k: tuned_scores(cells, counts) for k, counts in seed_counts.items()}
        for name, cells in scores.items()
    }
    again = {name: _again(cells, seed_counts[count]) for name, cells in scores.items()}
    results = []
    for q in questions:
        spreads = {k: float(np.std(ends[q.ours][k] - ends[q.theirs][k])) for k in seed_counts}
        gap, spread = differences(by[q.ours], by[q.theirs]), spreads.pop(count)
        # An error of the mean that has both variances.
        both = replace(gap, std=hypot(gap.std, spread * sqrt(gap.runs)))
        pair = again[q.ours], again[q.theirs]
        results.append(Choice(q, paired_runs(both), pair, spread, spreads))
    return results


def tuned_scores(cells: Sequence[Floats], counts: Floats) -> Floats:
    """Score of a constraint after choices from drawn seeds, mean over its cells. [draws]

    Args:
      cells: scores of its trials in each cell. [trials, seeds]
      counts: how often each seed was drawn. [draws, seeds]

    Example:
      >>> import numpy as np
      >>> cell = np.array([[0.5, 0.1], [0.2, 0.6]])  # either trial may be chosen, on one seed
      >>> tuned_scores([cell], np.eye(2))
      array([0.3, 0.4])
    """
    means = [scores.mean(axis=1)[choose_trials(scores, counts)] for scores in cells]
    return np.mean(means, axis=0)


def choose_trials(scores: Floats, counts: Floats) -> NDArray[np.intp]:
    """The trial that each draw of seeds chooses, of several that are equal the first. [draws]

    Args:
      scores: of the trials of a cell. [trials, seeds]
      counts: how often each seed was drawn. [draws, seeds]
    """
    return (counts @ scores.T).argmax(axis=1)


def _again(cells: Sequence[Floats], counts: Floats) -> float:
    """Share of draws and cells in which all seeds' trial is chosen."""
    same = [choose_trials(scores, counts) == scores.mean(axis=1).argmax() for scores in cells]
    return float(np.mean(same))


def cell_scores(trials: Runs, seeds: Sequence[int]) -> Iterator[Floats]:
    """Scores of the trials of each cell. [trials, seeds]"""
    for cell in trials.by(*CELL).values():
        rows = [dict(zip(own["seed"].tolist(), own["end"].tolist(), strict=True))
                for own in cell.by(*TRIAL).values()]  # fmt: skip
        yield np.array([[row[seed] for seed in seeds] for row in rows])
