"""The course of a run's evaluations in words: where it began, was best, and ended."""

from collections.abc import Iterator, Mapping, Sequence

from trustclip.runs.reader import Evaluation


def course_of_scores(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """The first, the best and the last evaluation, each with its 95 % interval, and a fall."""
    metric, found = _measured(evaluations)
    if not found:
        return
    first, best, last = found[0], max(found, key=lambda at: at[1]["value"]), found[-1]
    text = f"The evaluation score ({metric}, 95 % interval) was {_score(*first)}"
    if len(found) > 1:
        text += f" and {_score(*last)}"
        text += f"; the best was {_score(*best)}" if best not in (first, last) else ""
    fell = [(name, at) for name, at in (("first", first), ("best", best)) if _below(last, at)]
    clear = [name for name, at in fell if _below(last, at, clearly=True)]
    if clear:
        text += f". It fell: the last interval lies below the {clear[0]} one"
    elif fell and fell[0][0] == "first":
        text += ". It fell from the first to the last, by less than the intervals tell apart"
    yield text + "."


def score_fell(evaluations: Sequence[Evaluation]) -> int | None:
    """The update of the best score, where the interval of the last one lies below its interval."""
    _, found = _measured(evaluations)
    best = max(found, key=lambda at: at[1]["value"], default=None)
    return best[0] if best and _below(found[-1], best, clearly=True) else None


def score_rose(evaluations: Sequence[Evaluation]) -> bool:
    """Whether the interval of the last score lies above that of the first."""
    _, found = _measured(evaluations)
    return bool(found) and _below(found[0], found[-1], clearly=True)


_Scored = tuple[int, Mapping[str, float]]


def _measured(evaluations: Sequence[Evaluation]) -> tuple[str, list[_Scored]]:
    """The first score of the first evaluation, in all that have it, by update."""
    during = [(e.step, e) for e in evaluations if e.step is not None]
    metric = next((name for _, e in during for name in e.metrics), "")
    scored = [(step, score) for step, e in during if (score := e.score(None, metric))]
    return metric, [at for at in scored if at[1].get("value") is not None]


def _score(step: int, score: Mapping[str, float]) -> str:
    low, high = score.get("low"), score.get("high")
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    when = f"after update {step}" if step else "before training"
    return f"{100 * score['value']:.1f} %{bounds} {when}"


def _below(one: _Scored, other: _Scored, *, clearly: bool = False) -> bool:
    if not clearly:
        return one[1]["value"] < other[1]["value"]
    high, low = one[1].get("high"), other[1].get("low")
    return high is not None and low is not None and high < low
