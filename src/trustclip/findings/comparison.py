"""Groups against the reference of their setting: each difference, its interval and its p-value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan
from typing import Any

from trustclip import stats
from trustclip.findings.facts import LEVEL, LOST
from trustclip.findings.groups import Group, common_seeds, names, shared_answers
from trustclip.logs.answers import usual, whole
from trustclip.logs.reader import Evaluation, Run
from trustclip.stats.differences import runs_difference
from trustclip.stats.power import required_of_runs


@dataclass(frozen=True)
class Compared:
    """One group compared with the reference of its setting, on common seeds if there are any.

    Args:
      name: of the group, unique among those that are compared.
      metric: ``"mean@8"``; ``"mean@K"`` where the groups of the setting have different numbers of
        samples; ``"pass@4"`` with the fewest samples of any of them.
      seeds: runs of the group, and as a rule of the reference, in the comparison.
      step: update at which they are compared while one of them is unfinished; None at the end.
      difference: group - reference, in shares of 1, with its own p; None if not comparable.
      p_holm: p corrected for the family of all comparisons of this metric.
      verdict: one sentence; the reason, if not comparable.
      same_seeds: whether runs of the same seed are paired.
      identical: whether the runs wrote the same text, completion by completion.
      detectable: smallest gap that these runs find with 80 % power, in shares of 1; nan if unknown.
      counted: the difference with lost answers counted as wrong, where more than `LOST` are lost.
      disputed: whether only one of the two differences is significant; there is no verdict then.
    """

    name: str
    group: Group
    reference: Group
    metric: str
    seeds: int
    step: int | None
    difference: stats.Difference | None
    p_holm: float
    verdict: str
    same_seeds: bool = False
    identical: bool = False
    detectable: float = nan
    counted: stats.Difference | None = None
    disputed: bool = False

    @property
    def resolved(self) -> bool:
        """Whether the corrected p-value is at most 5 %, however lost answers are counted."""
        return self.difference is not None and not self.disputed and significant(self.p_holm)

    @property
    def tested(self) -> bool:
        """Whether the runs can tell: one or two of a method cannot, and have no p or interval."""
        d = self.difference
        return d is not None and (self.identical or (d.p == d.p and d.low == d.low))


def significant(p: float) -> bool:
    """Whether a p-value is at most 5 %; one that is not known is not."""
    return p <= 1 - LEVEL + 1e-12


@dataclass(frozen=True)
class _Pair:
    """Runs of a group and of its reference, and their answers at ``step`` or (None) at the end.

    ``texts``, digests of completions, ``answers`` and ``values`` are of each run: of ``many`` runs
    of the group, then of those of the reference. ``values`` are of the score ``name`` that is one
    number of each run, without answers. ``same_seeds``: run i of the one and run i of the other
    have the same seed. ``k``: of Pass@k, one for all pairs of a setting; ``unequal``: whether that
    is fewer samples than some have.
    """

    group: Group
    reference: Group
    many: int
    texts: Sequence[str]
    answers: Sequence[Any]
    strata: Sequence[Any]
    same_seeds: bool
    step: int | None = None
    obstacle: str = ""
    k: int = 0
    unequal: bool = False
    name: str = ""
    values: Sequence[float] = ()
    counted: Any = None

    def arms(self, each: Sequence[Any]) -> tuple[Any, Any]:
        """What is of each run: that of the group, and that of the reference."""
        return each[: self.many], each[self.many :]

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of a problem of each of the two; see `usual`."""
        arms = self.arms(self.answers)
        return tuple(min(usual(run, self.strata) for run in arm) for arm in arms)

    def metric(self, kind: str) -> str:
        """Name of the score that is compared."""
        if self.name:
            return self.name
        return f"mean@{'K' if self.unequal else self.k}" if kind == "mean" else f"pass@{self.k}"

    def difference(self, kind: str) -> stats.Difference:
        """Of Mean@K or Pass@K; exactly 0 where every completion is the same."""
        if self.identical:
            return stats.Difference(0.0, 0.0, 0.0, 1.0)
        if self.values:
            return runs_difference(*self.arms(self.values), same_seeds=self.same_seeds, level=LEVEL)
        a, b, strata, k = self.scored(kind)
        found = stats.paired_difference(a, b, strata, k=k, level=LEVEL, same_seeds=self.same_seeds)
        # Of two runs, the p over problems is no test of how they were made.
        return replace(found, p=nan) if len(a) == len(b) == 1 else found

    def required(self, kind: str, level: float) -> stats.Required:
        """What gap can be found, at the confidence of the strictest test of the family."""
        if self.values:
            found = required_of_runs(
                *self.arms(self.values), level=level, same_seeds=self.same_seeds
            )
            share = self.group.scale == "percent"  # no gap of shares is 1 or more
            return replace(found, detectable=inf) if share and found.detectable >= 1 else found
        a, b, strata, k = self.scored(kind)
        return stats.required(a, b, strata, k=k, level=level, same_seeds=self.same_seeds)

    def with_lost(self, kind: str) -> stats.Difference | None:
        """The difference with lost answers counted as wrong; None where few are lost."""
        return None if self.counted is None else replace(self.counted, k=self.k).difference(kind)

    def scored(self, kind: str) -> tuple[Any, Any, Sequence[Any], int | None]:
        """What a score is compared by: answers of both, benchmarks, and k of Pass@k."""
        if kind == "mean":
            return *self.arms(self.answers), self.strata, None
        answers, strata = whole(self.answers, self.strata, self.k)
        return *self.arms(answers), strata, self.k

    @cached_property
    def identical(self) -> bool:
        """Whether the runs wrote the same text, completion by completion."""
        (a, b), (ours, theirs) = self.arms(self.answers), self.arms(self.texts)
        return self.same_seeds and a == b and all(ours) and ours == theirs

    def without(self, kind: str) -> bool:
        """Whether the runs have no such score."""
        if self.obstacle or kind == "mean":
            return False
        ours = self.group.metrics, self.reference.metrics
        return not all(any(m.startswith(kind) for m in metrics) for metrics in ours)


def compare(groups: Sequence[Group], kind: str = "mean") -> list[Compared]:
    """Every evaluated group against the reference of its setting, at the final evaluation.

    While a run of a pair is unfinished: at the last update at which both were evaluated. Runs of
    the same seed are compared with each other. Groups without a common seed are compared as
    independent runs if both have several; two single training runs of different seeds are not.
    The comparisons in all settings are one family for Holm's correction. Kinds are ``"mean"`` and
    ``"pass"``.
    """
    references = {group.setting: group for group in groups if group.is_reference}
    pairs = [
        _pair(group, references[group.setting])
        for group in groups
        if not group.is_reference and group.scored and references[group.setting].scored
    ]
    pairs = [pair for pair in _at_one_k(pairs) if not pair.without(kind)]
    differences = [None if pair.obstacle else pair.difference(kind) for pair in pairs]
    counted = [None if pair.obstacle else pair.with_lost(kind) for pair in pairs]
    adjusted = holm(differences)
    family = sum(one is not None for one in differences)
    labels = names([pair.group for pair in pairs])
    found = [
        _comparison(pair, name, kind, difference, p, family)
        for pair, name, difference, p in zip(pairs, labels, differences, adjusted, strict=True)
    ]
    again = holm([second or first for first, second in zip(differences, counted, strict=True)])
    return [
        one if second is None else _with_lost(one, second, p)
        for one, second, p in zip(found, counted, again, strict=True)
    ]


def holm(differences: Sequence[stats.Difference | None]) -> list[float]:
    """Their p-values after Holm's correction; nan where there is no difference."""
    return stats.holm([nan if one is None else one.p for one in differences]).tolist()


def _with_lost(compared: Compared, counted: stats.Difference, p: float) -> Compared:
    """A comparison beside that with lost answers counted as wrong; no verdict if they disagree."""
    first = compared.difference
    assert first is not None
    both = significant(compared.p_holm) == significant(p) and first.value * counted.value >= 0
    neither = not significant(compared.p_holm) and not significant(p)
    said = f"with lost answers counted as wrong the difference is {points(counted)}"
    if both or neither:
        return replace(compared, counted=counted, verdict=f"{compared.verdict}; {said}")
    verdict = f"there is no verdict: the difference is {points(first)}, and {said}"
    return replace(compared, counted=counted, verdict=verdict, disputed=True)


def points(d: stats.Difference) -> str:
    """A difference in points, with its interval.

    Example:
      >>> points(stats.Difference(0.052, 0.021, 0.083, 0.001))
      '+5.2 [+2.1, +8.3]'
    """
    value, low, high = (f"{100 * share:+.1f}" for share in (d.value, d.low, d.high))
    return value if d.low != d.low else f"{value} [{low}, {high}]"


def _at_one_k(pairs: Sequence[_Pair]) -> list[_Pair]:
    """The pairs with the fewest samples of their setting: another Pass@k is another quantity."""
    samples: dict[str, set[int]] = {}
    for pair in pairs:
        if not pair.obstacle and not pair.name:
            samples.setdefault(pair.reference.setting, set()).update(pair.samples)
    return [
        pair if pair.obstacle or pair.name
        else replace(pair, k=min(sizes := samples[pair.reference.setting]), unequal=len(sizes) > 1)
        for pair in pairs
    ]  # fmt: skip


def _comparison(
    pair: _Pair, name: str, kind: str, difference: stats.Difference | None, p: float, family: int
) -> Compared:
    if difference is None:
        return Compared(name, pair.group, pair.reference, kind, 0, None, None, nan, pair.obstacle)
    arms = (pair.group.label, pair.reference.label)
    level = 1 - (1 - LEVEL) / family
    if pair.identical:
        sentence, detectable = f"identical to {arms[1]}, completion by completion", nan
    else:
        budget = pair.required(kind, level)
        detectable = budget.detectable
        sentence = stats.verdict(replace(difference, p=p), budget, names=arms, level=LEVEL)
    return Compared(
        name, pair.group, pair.reference, pair.metric(kind), pair.many, pair.step, difference, p,
        sentence, pair.same_seeds, pair.identical, detectable,
    )  # fmt: skip


def difference_on(compared: Compared, kind: str, task: str) -> stats.Difference | None:
    """The difference on one task, uncorrected; None where the two are not comparable."""
    pair = _pair(compared.group, compared.reference, task)
    if pair.obstacle:
        return None
    tries = compared.metric.partition("@")[2]
    return replace(pair, k=int(tries) if kind == "pass" else 0).difference(kind)


def _pair(
    group: Group, reference: Group, task: str | None = None, lost: int | None = None
) -> _Pair:
    first, second, same_seeds = _matching_runs(group.scored, reference.scored)
    evaluations, step = _alike([*first, *second])
    answers, strata = shared_answers(evaluations, task, lost)
    name = evaluations[0].number if evaluations else ""
    scores = [one.score(task, name) for one in evaluations] if name else []
    values = [score["value"] for score in scores if score is not None]
    if name and len(values) < len(evaluations):
        values = []
    obstacle = (
        f"not compared: each has one run, and the seeds {first[0].seed} and {second[0].seed} differ"
        if len(first) == len(second) == 1 and not same_seeds
        else "" if answers or values
        else "not compared: they share no seed, and one of the two has a single run" if not first
        else "not compared: they were never evaluated at the same update" if not evaluations
        else "not compared: the problems differ, or the answers are missing"
    )  # fmt: skip
    counted = None
    if lost is None and answers and any(e.lost[0] > LOST * e.lost[1] for e in evaluations):
        most = max(
            e.asked.get(name) or usual([*problems.values()])
            for e in evaluations
            for name, problems in e.answers.items()
        )
        counted = _pair(group, reference, task, most)
    return _Pair(
        group, reference, len(first), [e.texts for e in evaluations], answers, strata, same_seeds,
        step, obstacle, name=name if values else "", values=values, counted=counted,
    )  # fmt: skip


def _matching_runs(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Run], list[Run], bool]:
    """Runs to compare, and whether they are pairs of one seed."""
    ours, theirs = common_seeds([a, b])
    if ours:
        return ours, theirs, True
    ours, theirs = ([*{run.seed: run for run in runs}.values()] for runs in (a, b))
    alone = len(ours) == len(theirs) == 1
    if alone or min(len(ours), len(theirs)) > 1:
        # Without training two runs may have no seed in common, and are a pair all the same.
        return ours, theirs, alone and any(run.method is None for run in [*ours, *theirs])
    return [], [], False


def _alike(runs: Sequence[Run]) -> tuple[list[Evaluation], int | None]:
    """Comparable evaluations of the runs, and the update if it is not the last."""
    finals = [run.final for run in runs if run.final is not None]
    if all(run.finished for run in runs) or len({e.step for e in finals}) == 1:
        return finals, None
    by_step = [{e.step: e for e in run.trained} for run in runs]
    shared = set.intersection(*(set(evaluations) for evaluations in by_step)) - {None}
    if not shared:
        return [], None
    step = max(step for step in shared if step is not None)
    return [evaluations[step] for evaluations in by_step], step


def gain(group: Group) -> stats.Difference | None:
    """Final minus initial score of a group, paired by problem; None if either is missing."""
    runs = [run for run in group.scored if run.initial is not None]
    before = [run.initial for run in runs if run.initial is not None]
    after = [run.final for run in runs if run.final is not None]
    answers, strata = shared_answers([*after, *before])
    if not answers:
        return None
    a, b = answers[: len(after)], answers[len(after) :]
    return stats.paired_difference(a, b, strata, level=LEVEL, same_seeds=True)
