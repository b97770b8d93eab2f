"""The way to the end: area under the learning curve, collapses, and time to a score."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan

from trustclip import stats
from trustclip.findings.comparison import holm
from trustclip.findings.groups import Group, common_seeds, shared_answers
from trustclip.findings.scores import collapsed, mean_of
from trustclip.logs.run import Evaluation, Run
from trustclip.stats import Difference, Interval, curves
from trustclip.stats.differences import paired_runs
from trustclip.stats.scores import Floats


@dataclass(frozen=True)
class Learning:
    """How the runs of a group came to their ends. Scores are Mean@K, in shares of 1.

    Bounds are nan where they are not known. The p of a difference is corrected for all groups
    (Holm).

    Args:
      area: under the learning curve, mean over runs; None where it is not known.
      area_minus: minus that of the reference; None for the reference.
      collapsed: share of runs, with Clopper and Pearson's interval.
      reached: share of runs that reached the threshold, likewise; None without a threshold.
      time: updates until then, those of runs that never did counted to their ends.
      time_minus: minus those of the reference, paired by seed.
    """

    area: Interval | None
    area_minus: Difference | None
    collapsed: Interval
    reached: Interval | None = None
    time: Interval | None = None
    time_minus: Difference | None = None


def learning_curve(run: Run) -> dict[int, Evaluation]:
    """The evaluations that make a learning curve, by their updates, from the first one on."""
    return {e.step: e for e in run.evaluations if e.step is not None and e.metrics}


def area_of(run: Run) -> float | None:
    """Area under the learning curve of a run; None with fewer than two evaluations."""
    evaluations = learning_curve(run)
    if len(evaluations) < 2:
        return None
    return curves.area([*evaluations], [*map(mean_of, evaluations.values())])


def time_of(run: Run, reaches: float) -> float:
    """Updates until an evaluation of a run first has this score; nan for never."""
    evaluations = learning_curve(run)
    return curves.reached([*evaluations], [*map(mean_of, evaluations.values())], reaches)


def threshold(groups: Sequence[Group], reaches: float | None = None) -> float | None:
    """The score whose time is measured: `reaches`, or that of the suite; None for neither.

    Raises:
      ValueError: it is not in (0, 1].
    """
    if reaches is None:
        of_suites = (run.entry.get("reaches") for group in groups for run in group.runs)
        reaches = next((value for value in of_suites if value is not None), None)
    if reaches is not None and not 0 < reaches <= 1:
        raise ValueError(
            f"`reaches` is a share of right answers in (0, 1], e.g. 0.9; got {reaches}."
        )
    return reaches


def learning(groups: Sequence[Group], reaches: float | None) -> list[Learning | None]:
    """What is known of each group; None where no run has ended with two evaluations.

    Areas are compared like final scores: by problem and, where there are several, by seed. Holm's
    correction is over all groups of all settings.
    """
    references = {group.setting: group for group in groups if group.is_reference}
    pairs = [
        None
        if group.is_reference
        else common_seeds([_complete_runs(group), _complete_runs(references[group.setting])])
        for group in groups
    ]
    areas = [None if pair is None else _area_minus(*pair) for pair in pairs]
    times = [
        None if pair is None or reaches is None else _time_minus(*pair, reaches=reaches)
        for pair in pairs
    ]
    return [
        _of(group, area, time, reaches)
        for group, area, time in zip(groups, _with_holm(areas), _with_holm(times), strict=True)
    ]


def _complete_runs(group: Group) -> list[Run]:
    """Finished runs with a learning curve."""
    return [run for run in group.scored if run.finished and len(learning_curve(run)) > 1]


def _of(
    group: Group, area: Difference | None, time: Difference | None, reaches: float | None
) -> Learning | None:
    runs = _complete_runs(group)
    if not runs:
        return None
    own = _area(runs)
    if own is not None and group.unsteady:
        own = Interval(own.value)
    fallen = _rate([collapsed(run) for run in runs])
    if reaches is None:
        return Learning(own, area, fallen)
    hits = _rate([not isnan(time_of(run, reaches)) for run in runs])
    return Learning(own, area, fallen, hits, _time(runs, reaches), time)


def _rate(hits: Sequence[bool]) -> Interval:
    """Share of runs; one run has no interval worth a number."""
    return stats.rate_interval(sum(hits), len(hits)) if len(hits) > 1 else Interval(sum(hits))


def _times(runs: Sequence[Run], reaches: float) -> Floats:
    return curves.restricted([time_of(run, reaches) for run in runs], [r.last_step for r in runs])


def _time(runs: Sequence[Run], reaches: float) -> Interval:
    """Restricted mean of the times; its interval, within the run, needs times that differ."""
    times, end = _times(runs, reaches), float(max(run.last_step for run in runs))
    if len(set(times)) < 2:
        return Interval(float(times.mean()))
    interval = stats.RunSummary.of(times).interval()
    return replace(interval, low=max(interval.low, 0.0), high=min(interval.high, end))


def _area(runs: Sequence[Run]) -> Interval | None:
    """Mean over runs, with the interval of their answers where these are known."""
    answers, strata = tallies(runs)
    if answers is not None:
        return stats.mean_interval(answers, strata)
    values = [value for run in runs if (value := area_of(run)) is not None]
    return Interval(sum(values) / len(values)) if values else None


def tallies(runs: Sequence[Run]) -> tuple[stats.Tally | None, list[str]]:
    """Answers whose share is the area, [runs, problems], and the tasks of the problems.

    None where runs were evaluated at different updates or on different problems.
    """
    by_run = [learning_curve(run) for run in runs]
    if not runs or any([*own] != [*by_run[0]] for own in by_run):
        return None, []
    answers, strata = shared_answers([e for own in by_run for e in own.values()])
    if not answers:
        return None, []
    many = len(by_run[0])
    by_update = [stats.tally(answers[i::many]) for i in range(many)]
    return curves.area_tally([*by_run[0]], by_update), strata


def _area_minus(ours: Sequence[Run], theirs: Sequence[Run]) -> Difference | None:
    answers, strata = tallies([*ours, *theirs])
    if answers is None:
        return None
    many = len(ours)
    a = stats.Tally(answers.right[:many], answers.total[:many])
    b = stats.Tally(answers.right[many:], answers.total[many:])
    if (a.right == b.right).all():
        return Difference(0.0, 0.0, 0.0, 1.0)
    return stats.paired_difference(a, b, strata, same_seeds=True)


def _time_minus(ours: Sequence[Run], theirs: Sequence[Run], reaches: float) -> Difference | None:
    """Difference of the times, paired by seed.

    Times are those of evaluations, and may differ by the same in every seed: p is no less than
    that of the signs alone, and without any spread there is no interval.
    """
    if len(ours) < 2:
        return None
    gaps = stats.RunSummary.of(_times(ours, reaches) - _times(theirs, reaches))
    gap, end = paired_runs(gaps), max(run.last_step for run in [*ours, *theirs])
    p = max(gap.p, 2.0 ** (1 - gaps.runs))
    if not gaps.std:
        return Difference(gap.value, nan, nan, p)
    return Difference(gap.value, max(gap.low, -end), min(gap.high, end), p)


def _with_holm(gaps: Sequence[Difference | None]) -> list[Difference | None]:
    """Differences with their p-values after Holm's correction."""
    return [gap and replace(gap, p=p) for gap, p in zip(gaps, holm(gaps), strict=True)]
