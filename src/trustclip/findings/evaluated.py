"""How the evaluations of a run went: whether its score rose, fell, or collapsed."""

from collections.abc import Mapping, Sequence

from trustclip import stats
from trustclip.findings.facts import FELL, LEFT
from trustclip.logs.run import Evaluation, Run

#: An evaluation's update and its score.
ScoreAt = tuple[int, Mapping[str, float]]


def scores_by_update(evaluations: Sequence[Evaluation]) -> tuple[str, list[ScoreAt]]:
    """The first score of the first evaluation, in all that have it, by update."""
    during = [(e.step, e) for e in evaluations if e.step is not None]
    metric = next((name for _, e in during for name in e.metrics), "")
    scored = [(step, score) for step, e in during if (score := e.score(None, metric))]
    return metric, [at for at in scored if at[1].get("value") is not None]


def below(one: ScoreAt, other: ScoreAt, *, clearly: bool = False) -> bool:
    """Whether a score is below another; clearly: its interval is."""
    if not clearly:
        return one[1]["value"] < other[1]["value"]
    high, low = one[1].get("high"), other[1].get("low")
    return high is not None and low is not None and high < low


def rose(evaluations: Sequence[Evaluation]) -> bool:
    """Whether the interval of the last score lies above that of the first."""
    _, scores = scores_by_update(evaluations)
    return bool(scores) and below(scores[0], scores[-1], clearly=True)


def collapsed(run: Run) -> bool:
    """Whether a run ends with less than `LEFT` of the best Mean@K of its own evaluations.

    Where the answers are stored, the fall must also be significant by problem (p <= `FELL`).
    """
    if run.final is None:
        return False
    top = max(run.evaluations, key=mean_of)
    if mean_of(run.final) >= LEFT * mean_of(top):
        return False
    after, before = answers_of(run.final), answers_of(top)
    if not after or after.keys() != before.keys():
        return True
    keys = [key for key in before if before[key] and after[key]]
    fall = stats.paired_difference([after[key] for key in keys], [before[key] for key in keys])
    return fall.p <= FELL


def mean_of(evaluation: Evaluation) -> float:
    """Mean@K of an evaluation, averaged over its tasks; 0 where it has none."""
    score = evaluation.score(None, evaluation.metrics[0]) if evaluation.metrics else None
    return score["value"] if score else 0.0


def answers_of(evaluation: Evaluation) -> dict[tuple[str, str], list[int]]:
    """Answers to each problem of each task."""
    return {
        (task, problem): answers
        for task, problems in evaluation.answers.items()
        for problem, answers in problems.items()
    }
