"""Scores of sampled answers by problem: Mean@K, the unbiased Pass@k, and their curves over k."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Correct = ArrayLike | Sequence[Any]
"""0/1, or shares, by [problems, samples] or [seeds, problems, samples]; rows may be unequal."""
Strata = Sequence[str] | Sequence[tuple[str, str]]
"""Benchmark of each problem, or (benchmark, family) where problems come in families."""


@dataclass(frozen=True)
class Tally:
    """How many of the sampled answers to each problem are right.

    Args:
      right: right answers, int [seeds, problems], 0 <= right <= total; where answers are right in
        part, the sum of their scores, float.
      total: sampled answers, int [seeds, problems], >= 1.

    Raises:
      ValueError: if the shapes differ or a count is out of range.
    """

    right: Ints | Floats
    total: Ints

    def __post_init__(self) -> None:
        if self.right.ndim != 2 or self.right.shape != self.total.shape or not self.right.size:
            raise ValueError(
                "right and total must share one non-empty shape [seeds, problems]; "
                f"got {self.right.shape} and {self.total.shape}"
            )
        if (self.right < 0).any() or (self.right > self.total).any() or (self.total < 1).any():
            raise ValueError("counts must satisfy 0 <= right <= total and total >= 1")


def tally(correct: Correct | Tally) -> Tally:
    """Count right and sampled answers; one seed if there is no axis of seeds.

    Nested lists may hold a different number of samples for each problem. A `Tally` is returned as
    it is.

    Raises:
      ValueError: if a value is not in [0, 1], a problem has no sample, or seeds differ in problems.

    Example:
      >>> tally([[1, 0, 1], [0, 0]]).right
      array([[2, 0]])
    """
    if isinstance(correct, Tally):
        return correct
    padded = samples(correct)
    right = np.nansum(padded, axis=-1)
    whole = (np.isnan(padded) | (padded == np.floor(padded))).all()
    return Tally(right.astype(int) if whole else right, (~np.isnan(padded)).sum(axis=-1))


def samples(correct: Correct) -> Floats:
    """0/1 samples as one float array [seeds, problems, samples], padded at the end with nan."""
    try:
        array = np.asarray(correct, dtype=float)
    except (ValueError, TypeError):
        return _pad(correct)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(
            "correct must be a non-empty [problems, samples] or [seeds, problems, samples]; "
            f"got shape {array.shape}"
        )
    _require_shares(array, "correct")
    return array if array.ndim == 3 else array[None]


def _pad(correct: Any) -> Floats:
    seeds = correct if np.ndim(correct[0][0]) else [correct]
    if len({len(problems) for problems in seeds}) > 1:
        raise ValueError(
            f"every seed needs the same problems; got {[len(problems) for problems in seeds]}"
        )
    try:
        rows = [np.asarray(row, dtype=float) for problems in seeds for row in problems]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"correct must hold only numbers from 0 to 1 (or bool): {error}"
        ) from error
    for index, row in enumerate(rows):
        name = f"problem {index % len(seeds[0])}"
        if row.ndim != 1 or not row.size:
            raise ValueError(f"{name} needs at least one sample in a flat list")
        _require_shares(row, name)
    padded = np.full((len(rows), max(row.size for row in rows)), np.nan)
    for filled, row in zip(padded, rows, strict=True):
        filled[: row.size] = row
    return padded.reshape(len(seeds), len(seeds[0]), -1)


def _require_shares(array: Floats, name: str) -> None:
    odd = array[~((array >= 0) & (array <= 1))]
    if odd.size:
        raise ValueError(f"{name} must hold only numbers from 0 to 1 (or bool); got {odd[0]:g}")


def problem_scores(counts: Tally, k: int | None = None) -> Floats:
    """Score of each problem, float [seeds, problems]: Mean@K, or Pass@k if `k` is given.

    Mean@K is the average correctness of the K answers, the unbiased estimate of Pass@1.
    """
    if k is None:
        return counts.right / counts.total
    return _pass_scores(counts, k)[..., -1]


def _pass_scores(counts: Tally, k: int) -> Floats:
    fewest = int(counts.total.min())
    if not 1 <= k <= fewest:
        raise ValueError(
            f"k must be in 1..{fewest}, the smallest number of samples of a problem; got {k}"
        )
    draws = np.arange(k)
    wrong, total = (counts.total - counts.right)[..., None], counts.total[..., None]
    missed = np.cumprod(np.maximum(wrong - draws, 0) / (total - draws), axis=-1)
    return np.asarray(1 - missed, dtype=np.float64)


def strata_groups(strata: Sequence[str] | None, problems: int) -> list[Ints]:
    """Indices of the problems of each stratum, in order of first appearance."""
    if strata is None:
        return [np.arange(problems)]
    if len(strata) != problems:
        raise ValueError(
            f"strata must name one benchmark for each of the {problems} problems; got {len(strata)}"
        )
    members: dict[str, list[int]] = {}
    for index, name in enumerate(strata):
        members.setdefault(name, []).append(index)
    return [np.array(indices) for indices in members.values()]


def by_family(scores: Floats, strata: Strata | None) -> tuple[Floats, Sequence[str] | None]:
    r"""Scores of independent units: of the problems, or of their families where these are named.

    Problems of one template are alike, so a template counts as one observation. With $n$ problems
    of a benchmark in $G$ families, family $g$ of $n_g$ problems with the mean $s_g$ gets
    $m + (s_g - m)\, n_g G / n$, with $m$ the mean over problems. The mean of these is $m$, and
    their variance over $G$ is the linearised one of a mean over clusters of unequal sizes.

    Args:
      scores: of problems, float [seeds, problems].
      strata: of each problem.

    Returns:
      Scores [seeds, families], and the benchmark of each family.

    Example:
      >>> import numpy as np
      >>> by_family(np.array([[1.0, 1.0, 0.0]]), [("t", "a"), ("t", "a"), ("t", "b")])[0].round(3)
      array([[1.111, 0.222]])
    """
    if strata is None or all(isinstance(one, str) for one in strata):
        return scores, strata  # type: ignore[return-value]
    families: dict[str, dict[str, list[int]]] = {}
    for place, (task, family) in enumerate(strata):  # type: ignore[misc]
        families.setdefault(task, {}).setdefault(family, []).append(place)
    columns, tasks = [], []
    for task, members in families.items():
        every = [place for places in members.values() for place in places]
        mean, scale = scores[:, every].mean(), len(members) / len(every)
        for places in members.values():
            own = scores[:, places].mean(axis=1)
            columns.append(mean + (own - mean) * len(places) * scale)
            tasks.append(task)
    return np.stack(columns, axis=1), tasks


def macro_weights(groups: Sequence[Ints]) -> Floats:
    """Weight of each problem in the macro-average: 1 / (strata * problems in its stratum)."""
    weights = np.empty(sum(group.size for group in groups))
    for group in groups:
        weights[group] = 1 / (len(groups) * group.size)
    return weights


def macro_average(scores: Floats, groups: Sequence[Ints]) -> Floats:
    """Mean over strata of the mean over seeds and problems of [seeds, problems, ...]."""
    return np.mean([scores[:, group].mean(axis=(0, 1)) for group in groups], axis=0)


def _average(scores: Floats, strata: Strata | None) -> Floats:
    return macro_average(scores, strata_groups(benchmarks(strata), scores.shape[1]))


def benchmarks(strata: Strata | None) -> list[str] | None:
    """The benchmark of each problem, without its family."""
    return strata and [one if isinstance(one, str) else one[0] for one in strata]  # type: ignore[return-value]


def pass_curve(correct: Correct | Tally, strata: Strata | None = None) -> Floats:
    """Unbiased Pass@k for every k up to the smallest number of samples of a problem.

    Float array [k]; entry 0 is Pass@1. It never falls.

    Example:
      >>> pass_curve([[1, 0, 0, 0], [0, 0, 0, 0]])
      array([0.125, 0.25 , 0.375, 0.5  ])
    """
    counts = tally(correct)
    return _average(_pass_scores(counts, int(counts.total.min())), strata)


def mean_curve(correct: Correct, strata: Strata | None = None) -> Floats:
    """Mean@K of the first K samples, for every K up to the smallest number of samples.

    Samples stand in the order drawn. Float array [K]; its last entry uses the most samples and is
    the best estimate of them all.

    Example:
      >>> mean_curve([[1, 0, 0, 0], [0, 0, 0, 1]])
      array([0.5       , 0.25      , 0.16666667, 0.25      ])
    """
    array = samples(correct)
    array = array[..., : int((~np.isnan(array)).sum(axis=-1).min())]
    return _average(np.cumsum(array, axis=-1) / np.arange(1, array.shape[-1] + 1), strata)
