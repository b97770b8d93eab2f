"""The evaluations of a run in words: where it began, was best, and ended."""

from collections.abc import Iterator, Mapping

from trustclip.findings.course import Course
from trustclip.findings.evaluated import below, collapsed, scores_by_update
from trustclip.findings.facts import LEFT, TRUNCATED
from trustclip.findings.finding import Finding
from trustclip.findings.rows import percent


def of_run(course: Course) -> Iterator[Finding]:
    """The first, the best and the last evaluation, each with its 95 % interval, and a fall."""
    run = course.run
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
    evidence = {metric: last[1]["value"], f"{metric} at best": top[1]["value"]}
    yield Finding(f"scores/{name}", severity, f"{text}.", evidence, advice)
    cut = run.final.scores["average"].get("truncated") if run.final is not None else None
    if cut and cut > TRUNCATED:
        text = f"{percent(cut)} of the final answers were truncated."
        yield Finding("scores/truncated", "warning", text, {"truncated": cut})


def _score(step: int, score: Mapping[str, float]) -> str:
    low, high = score.get("low"), score.get("high")
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * score['value']:.1f} %{bounds} {_when(step)}"


def _when(step: int) -> str:
    return f"after update {step}" if step else "before training"
