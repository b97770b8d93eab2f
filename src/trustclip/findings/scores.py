"""The evaluations of a run: whether its score rose, fell or collapsed, as numbers and in words."""

from collections.abc import Iterator, Mapping, Sequence

from trustclip import stats
from trustclip.findings.facts import FELL, LEFT, TRUNCATED
from trustclip.findings.finding import Finding
from trustclip.findings.rows import percent
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


def of_run(run: Run) -> Iterator[Finding]:
    """The first, the best and the last evaluation, each with its 95 % interval, and a fall."""
    metric, scores = scores_by_update(run.evaluations)
    if not scores:
        return
    first, top, last = scores[0], max(scores, key=lambda at: at[1]["value"]), scores[-1]
    text = f"The evaluation score ({metric}, 95 % interval) was {_score(*first)}"
    if len(scores) > 1:
        text += f" and {_score(*last)}"
        text += f"; the best was {_score(*top)}" if top not in (first, last) else ""
    fell = [(name, at) for name, at in (("first", first), ("best", top)) if below(last, at)]
    clear = [name for name, at in fell if below(last, at, clearly=True)]
    if clear:
        text += f". The score fell: the last interval lies below the {clear[0]} one"
    elif fell and fell[0][0] == "first":
        text += ". The last score is lower than the first, by less than the intervals can show"
    lost = collapsed(run)
    if lost:
        text += f". The run collapsed: less than {percent(LEFT)} of its best score is left"
    advice = ""
    if clear or lost:
        below_it = " and has clearly fallen since" if clear else ""
        advice = (
            f"the evaluation score was highest {_when(top[0])}{below_it}: try a smaller learning "
            "rate, or fewer updates, before another threshold."
        )
    name = "collapsed" if lost else "fell" if clear else "course"
    severity = "fault" if lost else "warning" if clear else "note"
    yield Finding(f"scores/{name}", severity, f"{text}.", advice)
    cut = run.final.scores["average"].get("truncated") if run.final is not None else None
    if cut and cut > TRUNCATED:
        text = f"{percent(cut)} of the final answers were truncated."
        yield Finding("scores/truncated", "warning", text)


def _score(step: int, score: Mapping[str, float]) -> str:
    low, high = score.get("low"), score.get("high")
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * score['value']:.1f} %{bounds} {_when(step)}"


def _when(step: int) -> str:
    return f"after update {step}" if step else "before training"
