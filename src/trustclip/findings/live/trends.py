r"""Trends over generations: does a series rise or fall beyond its own noise?

Metrics of the sampler are constant within a generation and noisy between them, and every new
generation is a new test, so the thresholds are far out. ``benchmarks/sampler_guards.py`` measures
how often they are passed by noise, and how soon by a trend.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from trustclip.findings import facts

#: Largest autocorrelation that the standard error of a slope is corrected for.
_CORRELATED = 0.95

#: The metrics that are followed, by their names in the rows.
MISMATCH, ESS = "trustclip/sampler/k3", "trustclip/sampler/current/sequence_ess"
ENTROPY = "trustclip/entropy"
#: Of samples of the policy that is trained next: only what a weight transfer missed is in it.
FRESH = "trustclip/sampler/abs/lag_0"
#: Logged in the first row of each generation.
_BEGINS = "frac_reward_zero_std"


#: By metric: means of complete generations, and values of the one under way.
Series = dict[str, dict[str, list[float]]]


def new_series() -> Series:
    return {name: {"means": [], "open": []} for name in (MISMATCH, ESS, ENTROPY, FRESH)}


def follow(series: Series, row: Mapping[str, Any]) -> bool:
    """Add a row; True if it begins a generation, so that the one before it is complete.

    Example:
      >>> series = new_series()
      >>> for row in [{"frac_reward_zero_std": 0.0, ENTROPY: 1.0}, {ENTROPY: 3.0}]:
      ...     assert not follow(series, row)
      >>> follow(series, {"frac_reward_zero_std": 0.0}), series[ENTROPY]["means"]
      (True, [2.0])
    """
    complete = False
    for name, values in series.items():
        if _BEGINS in row and values["open"]:
            mean = sum(values["open"]) / len(values["open"])
            values["means"], values["open"] = [*values["means"], mean][-facts.WINDOW :], []
            complete = True
        value = row.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            values["open"] = [*values["open"], float(value)]
    return complete


def trend(values: Sequence[float]) -> tuple[float, float]:
    r"""Factor that the trend line covers, and its slope in standard errors.

    Least squares on $\log y$; the standard error is corrected for the first autocorrelation
    $\rho$ of the residuals by $\sqrt{(1+\rho)/(1-\rho)}$.

    Returns:
      (factor, standard errors); (1, 0) for fewer than `FEWEST` values.

    Example:
      >>> factor, errors = trend([2.0 ** (i / 10) * (1.1 if i % 2 else 1.0) for i in range(21)])
      >>> round(factor, 1), errors > 10
      (4.0, True)
    """
    n = len(values)
    if n < facts.FEWEST:
        return 1.0, 0.0
    y = [math.log(max(value, 1e-300)) for value in values]
    slope, intercept = linear_regression(range(n), y)
    residuals = [v - intercept - slope * i for i, v in enumerate(y)]
    squares = sum(r * r for r in residuals)
    if squares < 1e-18:  # a straight line
        return math.exp(slope * (n - 1)), math.copysign(math.inf, slope) if slope else 0.0
    rho = sum(a * b for a, b in pairwise(residuals)) / squares
    rho = min(max(rho + (1 + 3 * rho) / n, 0.0), _CORRELATED)  # its bias in short series
    error = math.sqrt(squares / (n - 2) * 12 / (n * (n * n - 1)) * (1 + rho) / (1 - rho))
    return math.exp(slope * (n - 1)), slope / error


def rises(values: Sequence[float]) -> bool:
    factor, errors = trend(values)
    return factor >= facts.FACTOR and errors >= facts.SIGNIFICANT


def falls(values: Sequence[float]) -> bool:
    factor, errors = trend(values)
    return factor <= 1 / facts.FACTOR and errors <= -facts.SIGNIFICANT


# Each of these describes its failure in a sentence, "" where there is none.


def mismatch_drift(series: Series) -> str:
    means = series[MISMATCH]["means"]
    if not rises(means) or means[-1] < facts.LEAST_MISMATCH:
        return ""
    return (
        f"sampler and trainer agree less and less: sampler/k3 rose {trend(means)[0]:.1f} times "
        f"over the last {len(means)} generations, to {means[-1]:.2g} nats per token. If it rose "
        "from 0, the sampler's weights are not updated (LoRA not synchronised); if it grows with "
        "the length of the completions, compare precision and kernels (trustclip doctor "
        "--sampler). Correct for the rest (tis, icepop, anchor 'rollout') or lower learning_rate."
    )


def weight_sync(series: Series) -> str:
    """A sampler that has not got all of the new weights.

    The first generation is sampled by the weights that both have loaded. Where one of a later
    generation is `JUMP` times as far from the trainer as any before it, the update between them
    has not reached the sampler, or only in part.
    """
    before, current = series[FRESH]["means"], series[FRESH]["open"][:1]
    if not (before and current) or current[0] < max(facts.LEAST_FRESH, facts.JUMP * max(before)):
        return ""
    times = current[0] / max(*before, 1e-9)
    return (
        "the sampler left the policy although it had just got its weights: sampler/abs of fresh "
        f"samples is {current[0]:.2g} nats per token, {times:.0f} times as much as in any "
        f"generation before ({len(before)}). Some weights were not sent or are not used (tied or "
        "packed layers, adapters, an engine that restarted). Find the cause with trustclip doctor "
        "--sampler. Until then the samples are not the policy's own: correct for the difference "
        "(tis, icepop)."
    )


def ess_fall(series: Series) -> str:
    means = series[ESS]["means"]
    if not falls(means):
        return ""
    return (
        "few completions carry each update: weighted against the sampler, they count like "
        f"{means[-1]:.0%} of their number. That is {trend(means)[0]:.0%} of the value {len(means)} "
        "generations ago, and collapses have been seen to follow. Lower learning_rate or the lag, "
        "take fewer updates per generation, or mask sequences that are far off (icepop with level "
        "'sequence', opsm, trm)."
    )


def entropy_rise(series: Series) -> str:
    means = series[ENTROPY]["means"]
    if not rises(means) or means[-1] < means[0] + facts.LEAST_RISE:
        return ""
    return (
        f"the entropy rose to {means[-1]:.2g} nats per token, {trend(means)[0]:.1f} times what it "
        f"was {len(means)} generations ago. Completions turn random, often just before the reward "
        "falls. Lower learning_rate, an entropy bonus or the upper bound of the constraint "
        "(entropy_slope/kept and gated/negative_* show which tokens drive it), and check the "
        "sampler (sampler/k3)."
    )
