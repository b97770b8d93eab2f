r"""What the choice of trials adds to a contrast.

A contrast of tuned constraints is measured at the trials that the tuning seeds chose. An interval
over test seeds holds these fixed: it says how well that one difference is known, and not what
another tuning, on as many other seeds, would have led to. Both together have the variance

.. math:: s_{test}^2 + s_{choice}^2,

since test seeds are none of the tuning's. The second term is estimated by choosing again from
tuning seeds drawn with replacement. In simulated tunings of the committed arena the interval of
both covers what tunings lead to on average in 93 % of cases with 16 tuning seeds, that of the test
alone in 70 % (``benchmarks/arena_coverage.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from trustclip.arena.analysis import CELL, Question, Runs, differences
from trustclip.arena.tuning import TRIAL
from trustclip.stats import Difference
from trustclip.stats.confidence import t_quantile
from trustclip.stats.scores import Floats

#: Times that the choice is made again.
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
    trials: Runs, tested: Runs, questions: Sequence[Question], draws: int = DRAWS
) -> list[Choice]:
    """Count the choice of trials in contrasts.

    Args:
      trials: tuning runs of one design.
      tested: its test runs.
      questions: those without runs of either kind are left out.
      draws: how often the choice is made again.

    Returns:
      One for each question; none with fewer than `FEWEST` tuning seeds.
    """
    seeds = trials.values("seed")
    if len(seeds) < FEWEST:
        return []
    scores = {name: [*cell_scores(own, seeds)] for name, own in trials.constraints.items()}
    by, rng, count = tested.constraints, np.random.default_rng(0), len(seeds)
    again = rng.multinomial(count, [1 / count] * count, size=draws).astype(float)
    parts = {  # subsets of the seeds, as counts
        k: (rng.random((draws, count)).argsort(axis=1) < k).astype(float)
        for k in FEWER
        if 4 * k <= count
    }
    found = []
    for q in questions:
        if q.ours in by and q.theirs in by and q.ours in scores and q.theirs in scores:
            pair = scores[q.ours], scores[q.theirs]
            spread = spread_of_choice(*pair, again)
            found.append(
                Choice(
                    question=q,
                    both=_widened(by[q.ours], by[q.theirs], spread),
                    again=(_the_same(pair[0], again), _the_same(pair[1], again)),
                    spread=spread,
                    fewer={k: spread_of_choice(*pair, part) for k, part in parts.items()},
                )
            )
    return found


def spread_of_choice(ours: Sequence[Floats], theirs: Sequence[Floats], counts: Floats) -> float:
    """Standard deviation of a contrast over choices from drawn seeds.

    Args:
      ours: scores of a constraint's trials in each cell. [trials, seeds]
      theirs: of the other's.
      counts: how often each seed was drawn. [draws, seeds]

    Example:
      >>> import numpy as np
      >>> ours = np.array([[0.5, 0.1], [0.2, 0.6]])  # either trial may be chosen, on one seed
      >>> theirs = np.array([[0.3, 0.3]])
      >>> print(f"{spread_of_choice([ours], [theirs], np.eye(2)):.3f}")
      0.050
    """
    values = [
        np.mean([cell.mean(axis=1)[chosen(cell, counts)] for cell in own], axis=0)
        for own in (ours, theirs)
    ]
    return float(np.std(values[0] - values[1]))


def chosen(scores: Floats, counts: Floats) -> NDArray[np.intp]:
    """The trial that each draw of seeds chooses, of several that are equal the first. [draws]

    Args:
      scores: of the trials of a cell. [trials, seeds]
      counts: how often each seed was drawn. [draws, seeds]
    """
    return (counts @ scores.T).argmax(axis=1)


def _the_same(cells: Sequence[Floats], counts: Floats) -> float:
    same = [chosen(own, counts) == own.mean(axis=1).argmax() for own in cells]
    return float(np.mean(same))


def cell_scores(trials: Runs, seeds: Sequence[int]) -> Iterator[Floats]:
    """Scores of the trials of each cell. [trials, seeds]"""
    for cell in trials.by(*CELL).values():
        rows = [dict(zip(own["seed"].tolist(), own["end"].tolist(), strict=True))
                for own in cell.by(*TRIAL).values()]  # fmt: skip
        yield np.array([[row[seed] for seed in seeds] for row in rows])


def _widened(ours: Runs, theirs: Runs, spread: float) -> Difference:
    gap = differences(ours, theirs)
    error, freedom = hypot(gap.std / gap.runs**0.5, spread), gap.runs - 1
    half = t_quantile(0.95, freedom) * error
    p = 2 * float(stdtr(freedom, -abs(gap.mean) / error)) if error else float(gap.mean == 0)
    return Difference(gap.mean, gap.mean - half, gap.mean + half, p)
