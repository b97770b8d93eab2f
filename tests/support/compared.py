"""A table of comparisons, put together from the statistics themselves: what reports must say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from trustclip.stats import (
    Difference,
    Interval,
    holm,
    mean_interval,
    paired_difference,
    pass_interval,
    required,
    verdict,
)


@dataclass(frozen=True)
class Comparison:
    """One run; of the reference the difference is None and the verdict "reference"."""

    name: str
    score: Interval
    difference: Difference | None
    p_adjusted: float
    verdict: str


def compare(
    runs: Mapping[str, Any],
    strata: Sequence[str] | None = None,
    *,
    k: int | None = None,
    level: float = 0.95,
    same_seeds: bool = False,
) -> list[Comparison]:
    """Every run with the first one, with Holm's correction over all of them."""

    def score(run: Any) -> Interval:
        if k is None:
            return mean_interval(run, strata, level)
        return pass_interval(run, k, strata, level)

    (reference, base), *others = runs.items()
    rows = [Comparison(reference, score(base), None, nan, "reference")]
    found = [
        paired_difference(run, base, strata, k=k, level=level, same_seeds=same_seeds)
        for _, run in others
    ]
    family = 1 - (1 - level) / len(others)
    for (name, run), difference, p in zip(
        others, found, holm([f.p for f in found]).tolist(), strict=True
    ):
        budget = required(run, base, strata, k=k, level=family, same_seeds=same_seeds)
        sentence = verdict(replace(difference, p=p), budget, names=(name, reference), level=level)
        rows.append(Comparison(name, score(run), difference, p, sentence))
    return rows
