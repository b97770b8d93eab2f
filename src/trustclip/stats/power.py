"""What it would take to resolve an observed gap, and the plain verdict of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isnan, log10, nan
from typing import Any

import numpy as np
from scipy.special import ndtri

from trustclip.stats.intervals import (
    Interval,
    cross_variance,
    mean_interval,
    mean_variance,
    pass_interval,
    seed_variance,
)
from trustclip.stats.paired import Difference, paired_difference, paired_scores
from trustclip.stats.runs import holm
from trustclip.stats.scores import (
    Correct,
    Ints,
    Tally,
    macro_average,
    macro_weights,
    strata_groups,
    tally,
)


@dataclass(frozen=True)
class Budget:
    """Samples per problem, problems, and training seeds of each model."""

    samples: float
    problems: float
    seeds: float


@dataclass(frozen=True)
class Required:
    """The budget at hand, and for each of its parts what it alone would have to become.

    In `needed`, inf: no amount of this part suffices; nan: the data cannot tell.
    """

    have: Budget
    needed: Budget


def required(
    a: Correct | Tally,
    b: Correct | Tally,
    strata: Sequence[str] | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    power: float = 0.8,
) -> Required:
    """How many samples, problems or seeds would resolve the observed gap.

    The variance of the difference is V_s + V_p + U / K: seeds, problems (how unevenly the gain
    is spread over them) and sampling, K answers a problem. A gap D is found at confidence `level`
    with probability `power` if the variance is (D / (z_level + z_power))^2; each number is what
    reaches it with the other two kept, taking the observed gap for the true one.

    Args:
      a: 0/1 by [problems, samples] or [seeds, problems, samples], or a `Tally`.
      b: the same problems in the same order.
      strata: benchmark of each problem, for a macro-average; all grow alike.
      k: for Pass@k instead of Mean@K; the number of samples is then nan.
      level: confidence of the two-sided test, in (0, 1).
      power: chance to find the gap, in (0, 1).

    Returns:
      `Required`. Samples are nan if a problem has a single one (sampling noise is unknown);
      seeds are nan if each model has one; all are inf if the gap is 0.

    Example:
      >>> a = Tally(np.tile([2, 5, 1, 7], 8)[None], np.full((1, 32), 8))
      >>> b = Tally(np.tile([1, 5, 1, 6], 8)[None], np.full((1, 32), 8))
      >>> required(a, b).needed.samples
      23.0
    """
    scores_a, scores_b = paired_scores(a, b, k)
    tallies = [tally(a), tally(b)]
    arms = [scores_a, scores_b]
    groups = strata_groups(strata, scores_a.shape[1])
    d = scores_a.mean(axis=0) - scores_b.mean(axis=0)
    have = Budget(
        min(int(t.total.min()) for t in tallies), d.size, min(arm.shape[0] for arm in arms)
    )
    gap = float(macro_average(d[None], groups))
    total, _ = mean_variance(d, arms, groups)
    if abs(gap) < 1e-12 or isnan(total):
        unknown = nan if isnan(total) else inf
        return Required(have, Budget(unknown, unknown, unknown))
    target = (gap / (ndtri((1 + level) / 2) + ndtri(power))) ** 2
    crossed = [arm for arm in arms if arm.shape[0] > 1]
    cross = sum(cross_variance(arm, groups) for arm in crossed)
    of_seeds = max(sum(seed_variance(arm, groups) for arm in crossed) - cross, 0.0)
    of_rest = total - of_seeds
    one_sample, sampling = (nan, nan) if k else _sampling_variance(tallies, groups)
    needed = Budget(
        samples=_amount(one_sample, target - of_seeds - max(of_rest - sampling, 0.0)),
        problems=_amount(of_rest * d.size, target - of_seeds),
        seeds=_amount((of_seeds + cross) * have.seeds, target - of_rest + cross)
        if crossed
        else nan,
    )
    return Required(have, needed)


def _amount(scale: float, room: float) -> float:
    """Smallest whole number x with scale / x <= room."""
    if isnan(scale) or isnan(room):
        return nan
    return float(ceil(scale / room)) if room > 0 else inf


def _sampling_variance(tallies: Sequence[Tally], groups: Sequence[Ints]) -> tuple[float, float]:
    """Variance of the difference due to sampling: for one answer a problem, and for those drawn."""
    if min(counts.total.min() for counts in tallies) < 2:
        return nan, nan
    weights = macro_weights(groups) ** 2
    one = drawn = 0.0
    for counts in tallies:
        share, seeds = counts.right / counts.total, counts.total.shape[0]
        of_drawn = share * (1 - share) / (counts.total - 1)
        drawn += float(of_drawn.mean(axis=0) @ weights) / seeds
        one += float((of_drawn * counts.total).mean(axis=0) @ weights) / seeds
    return one, drawn


def verdict(
    difference: Difference,
    budget: Required,
    *,
    names: tuple[str, str] = ("A", "B"),
    level: float = 0.95,
) -> str:
    """One plain sentence on a comparison.

    An unresolved one names the cheapest remedy that suffices alone: samples, problems, seeds.

    Args:
      difference: from `paired_difference`; its p may have been corrected for a family.
      budget: from `required`.
      names: of the two models.
      level: confidence, in (0, 1): the difference is resolved if p <= 1 - level.

    Returns:
      The sentence, without a full stop.

    Example:
      >>> budget = Required(Budget(8, 143, 1), Budget(66.0, 1240.0, float("nan")))
      >>> verdict(Difference(0.012, -0.01, 0.03, 0.29), budget)
      'not resolvable with 8 samples; about 66 would be needed'
      >>> verdict(Difference(0.052, 0.02, 0.08, 0.001), budget)
      'A is better than B by 5.2 points (p = 0.001)'
    """
    have, needed = budget.have, budget.needed
    drawn, asked = _many(have.samples, "sample"), _many(have.problems, "problem")
    if difference.p <= 1 - level + 1e-12:
        better, worse = names if difference.value > 0 else names[::-1]
        points = f"{abs(difference.value) * 100:.1f} points"
        return f"{better} is better than {worse} by {points} (p = {difference.p:.2g})"
    if abs(difference.value) < 1e-12:
        return f"no difference observed with {drawn} on {asked}"
    parts = [
        (drawn, have.samples, needed.samples),
        (asked, have.problems, needed.problems),
        (_many(have.seeds, "seed"), have.seeds, needed.seeds),
    ]
    for limit, at_hand, amount in parts:
        if at_hand < amount < inf:
            return f"not resolvable with {limit}; about {_rounded(amount)} would be needed"
    return f"not resolvable with {drawn} on {asked}"


def _many(count: float, noun: str) -> str:
    return f"{count:.0f} {noun}" + ("" if count == 1 else "s")


def _rounded(count: float) -> str:
    """Two significant digits, rounded up: the estimate is no better than that."""
    unit = 10 ** max(floor(log10(count)) - 1, 0)
    return f"{ceil(count / unit) * unit:,}"


@dataclass(frozen=True)
class Comparison:
    """One run of a comparison table.

    `difference` is run - reference; it, `p_adjusted` (Holm over the table's runs) and `verdict`
    are None, nan and "reference" for the reference itself.
    """

    name: str
    score: Interval
    difference: Difference | None
    p_adjusted: float
    verdict: str


def compare(
    runs: Mapping[str, Correct | Tally],
    strata: Sequence[str] | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> list[Comparison]:
    """Compare every run with the first one, with Holm's correction over the family.

    Args:
      runs: name to 0/1 [problems, samples] or [seeds, problems, samples], or `Tally`; all hold
        the same problems in the same order (see `align`).
      strata: benchmark of each problem, for a macro-average.
      k: compare Pass@k instead of Mean@K.
      level: confidence, in (0, 1).
      seed: of the resampling.

    Returns:
      One `Comparison` for each run, the reference first.

    Raises:
      ValueError: if there are fewer than two runs, or their problems or seeds do not match.

    Example:
      >>> table = compare({"clip": [[1, 0, 0, 0]] * 20, "atr": [[1, 1, 1, 0]] * 20})
      >>> print(table[1].verdict)
      atr is better than clip by 50.0 points (p = 0.0001)
    """
    if len(runs) < 2:
        raise ValueError(f"a comparison needs at least 2 runs; got {list(runs)}")
    (reference, base), *others = runs.items()
    rows = [Comparison(reference, _score(base, strata, k, level), None, nan, "reference")]
    found = [paired_difference(run, base, strata, k=k, level=level, seed=seed) for _, run in others]
    for (name, run), difference, p in zip(
        others, found, holm([f.p for f in found]).tolist(), strict=True
    ):
        budget = required(run, base, strata, k=k, level=1 - (1 - level) / len(others))
        sentence = verdict(replace(difference, p=p), budget, names=(name, reference), level=level)
        rows.append(Comparison(name, _score(run, strata, k, level), difference, p, sentence))
    return rows


def _score(
    run: Correct | Tally, strata: Sequence[str] | None, k: int | None, level: float
) -> Interval:
    if k is None:
        return mean_interval(run, strata, level)
    return pass_interval(run, k, strata, level)


def align(
    runs: Mapping[str, Mapping[str, Sequence[Any]]],
) -> tuple[list[str], dict[str, list[Any]]]:
    """Put the answers of several runs in one order of problems.

    Args:
      runs: run name to {problem id: 0/1 samples, or one such list for each seed}.

    Returns:
      (problem ids in the first run's order, run name to nested lists for `compare`).

    Raises:
      ValueError: if two runs differ in their problems (naming them), or a run's problems differ
        in the number of seeds.

    Example:
      >>> align({"a": {"x": [1, 0], "y": [0, 0]}, "b": {"y": [1, 1], "x": [0, 1]}})
      (['x', 'y'], {'a': [[1, 0], [0, 0]], 'b': [[0, 1], [1, 1]]})
    """
    first, *others = runs
    problems = list(runs[first])
    for other in others:
        unmatched = sorted(runs[first].keys() ^ runs[other].keys())
        if unmatched:
            shown = ", ".join(unmatched[:5]) + (", ..." if len(unmatched) > 5 else "")
            raise ValueError(
                f"{first} and {other} must hold the same problems; {len(unmatched)} "
                f"are in one of them only: {shown}"
            )
    return problems, {
        name: _by_seed(name, [answers[problem] for problem in problems])
        for name, answers in runs.items()
    }


def _by_seed(name: str, rows: list[Any]) -> list[Any]:
    if np.ndim(rows[0][0]) == 0:
        return [list(row) for row in rows]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name}: every problem needs the same number of seeds")
    return [[list(row[s]) for row in rows] for s in range(len(rows[0]))]
