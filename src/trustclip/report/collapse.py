"""Runs that lost what they had learned: told from noise, and reported as a rate."""

from collections.abc import Sequence

from trustclip import stats
from trustclip.runs.reader import Evaluation, Run
from trustclip.runs.text import percent

#: A run has collapsed if it ends below this share of the best score it had.
KEPT = 0.7
#: From this many runs on, an interval of their mean covers about as often as it says although one
#: run in four collapses (`collapses` of benchmarks/coverage.py).
ENOUGH_RUNS = 10


def collapsed(run: Run) -> bool:
    """Whether a run ends with less than `KEPT` of the best Mean@K of its own evaluations.

    Where the answers are stored, the fall must also be significant by problem (p <= 0.01), so that
    a few unlucky samples are no collapse.
    """
    if run.final is None:
        return False
    best = max(run.evaluations, key=mean_of)
    if mean_of(run.final) >= KEPT * mean_of(best):
        return False
    after, before = _answers(run.final), _answers(best)
    if not after or after.keys() != before.keys():
        return True
    fall = stats.paired_difference([after[key] for key in before], [*before.values()])
    return fall.p <= 0.01


def rate(runs: Sequence[Run]) -> str:
    """How many of the runs collapsed, with Clopper and Pearson's interval; empty if none did."""
    many = sum(collapsed(run) for run in runs)
    if not many:
        return ""
    share = stats.rate_interval(many, len(runs))
    return (
        f"{many} of {len(runs)} runs collapsed, a rate between {percent(share.low, 0)} and "
        f"{percent(share.high, 0)}\N{NO-BREAK SPACE}%"
    )


def mean_of(evaluation: Evaluation) -> float:
    """Mean@K of an evaluation, averaged over its tasks; 0 where it has none."""
    score = evaluation.score(None, evaluation.metrics[0]) if evaluation.metrics else None
    return score["value"] if score else 0.0


def _answers(evaluation: Evaluation) -> dict[tuple[str, str], list[int]]:
    return {
        (task, problem): answers
        for task, problems in evaluation.answers.items()
        for problem, answers in problems.items()
    }
