"""Groups against the reference of their model: what each difference is worth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trustclip import stats
from trustclip.report.groups import Group, shared_answers
from trustclip.report.runs import Evaluation, Run

LEVEL = 0.95


@dataclass(frozen=True)
class Compared:
    """One group against the reference of its setting, on the runs of the seeds that both have.

    Args:
      group: the group.
      reference: of its setting.
      metric: for example ``"mean@8"``.
      seeds: pairs of runs.
      step: update at which they are compared while one of them is unfinished; None at the end.
      difference: group - reference, in shares of 1, with its own p; None if not comparable.
      p_holm: p corrected for the family of all comparisons of this metric.
      verdict: one sentence; where not comparable, why.
    """

    group: Group
    reference: Group
    metric: str
    seeds: int
    step: int | None
    difference: stats.Difference | None
    p_holm: float
    verdict: str

    @property
    def resolved(self) -> bool:
        """Whether the difference is more than chance would make, at 95 %."""
        return self.difference is not None and self.p_holm <= 1 - LEVEL + 1e-12


@dataclass(frozen=True)
class _Pair:
    """Answers of a group and of its reference, seed by seed, at ``step`` or (None) at the end."""

    group: Group
    reference: Group
    a: Any
    b: Any
    strata: Sequence[str]
    step: int | None = None
    obstacle: str = ""

    @property
    def k(self) -> int:
        return int(min(stats.tally(answers).total.min() for answers in (self.a, self.b)))


def compare(groups: Sequence[Group], kind: str = "mean") -> list[Compared]:
    """Every group against the reference of its setting, at the final evaluation.

    As long as a run of a pair is unfinished: at the last update at which both were evaluated.

    Args:
      groups: of any settings; the comparisons in all of them are one family for Holm's correction.
      kind: ``"mean"`` for Mean@K, ``"pass"`` for Pass@K.

    Returns:
      One for each group that is no reference and has been evaluated.
    """
    references = {group.setting: group for group in groups if group.is_reference}
    pairs = [
        _pair(group, references[group.setting])
        for group in groups
        if not group.is_reference and group.scored and references[group.setting].scored
    ]
    family = [pair for pair in pairs if not pair.obstacle]
    found = [
        stats.paired_difference(p.a, p.b, p.strata, k=None if kind == "mean" else p.k, level=LEVEL)
        for p in family
    ]
    adjusted = stats.holm([difference.p for difference in found]).tolist()
    worth = {
        id(pair): (difference, p)
        for pair, difference, p in zip(family, found, adjusted, strict=True)
    }
    return [
        _compared(pair, kind, *worth[id(pair)], len(family)) if id(pair) in worth
        else Compared(pair.group, pair.reference, kind, 0, None, None, float("nan"), pair.obstacle)
        for pair in pairs
    ]  # fmt: skip


def _compared(
    pair: _Pair, kind: str, difference: stats.Difference, p: float, family: int
) -> Compared:
    k = None if kind == "mean" else pair.k
    level = 1 - (1 - LEVEL) / family
    budget = stats.required(pair.a, pair.b, pair.strata, k=k, level=level)
    names = (pair.group.label, pair.reference.label)
    sentence = stats.verdict(replace(difference, p=p), budget, names=names, level=LEVEL)
    metric = f"{kind}@{pair.k}"
    return Compared(
        pair.group, pair.reference, metric, len(pair.a), pair.step, difference, p, sentence
    )


def _pair(group: Group, reference: Group) -> _Pair:
    ours, theirs = ({run.seed: run for run in g.scored} for g in (group, reference))
    # Without training two runs may have no seed in common, and are a pair all the same.
    if len(ours) == len(theirs) == 1:
        matched = [(*ours.values(), *theirs.values())]
    else:
        matched = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    runs = [run for pair in matched for run in pair]
    evaluations, step = _alike(runs)
    answers, strata = shared_answers(evaluations)
    obstacle = (
        "" if answers
        else "not compared: no seed in common" if not matched
        else "not compared: never evaluated at the same update" if not evaluations
        else "not compared: the problems differ, or their samples are gone"
    )  # fmt: skip
    return _Pair(group, reference, answers[::2], answers[1::2], strata, step, obstacle)


def _alike(runs: Sequence[Run]) -> tuple[list[Evaluation], int | None]:
    """Evaluations of the runs that stand for each other, and the update if it is not the end."""
    finals = [run.final for run in runs if run.final is not None]
    if all(run.finished for run in runs) or len({e.step for e in finals}) == 1:
        return finals, None
    by_step = [{e.step: e for e in run.trained} for run in runs]
    shared = set.intersection(*(set(found) for found in by_step)) - {None}
    if not shared:
        return [], None
    step = max(step for step in shared if step is not None)
    return [found[step] for found in by_step], step


def gain(group: Group, kind: str = "mean") -> stats.Difference | None:
    """Final less initial score of a group, paired by problem; None where either is missing."""
    runs = [run for run in group.scored if run.initial is not None]
    before = [run.initial for run in runs if run.initial is not None]
    after = [run.final for run in runs if run.final is not None]
    answers, strata = shared_answers([*after, *before])
    if not answers:
        return None
    a, b = answers[: len(after)], answers[len(after) :]
    k = None if kind == "mean" else int(stats.tally([*a, *b]).total.min())
    return stats.paired_difference(a, b, strata, k=k, level=LEVEL)
