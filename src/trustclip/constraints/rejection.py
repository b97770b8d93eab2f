"""Masks and weights against another policy: what is measured, over what, and what the rest weighs.

Every engine has a few of these, each with one combination of the choices; methods name them.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import divergences
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.levels import Level, Reduction, reduce
from trustclip.constraints.masked import safe_exp, safe_expm1

#: Log of the largest weight, as in verl.
_LARGEST = 20.0

#: Two policies, the one in the numerator first.
Between = Literal["old_rollout", "new_rollout", "new_old"]
#: What is compared with the bounds.
Measure = Literal[
    "ratio", "k1", "k2", "k3", "tv", "exp_abs", "probability", "binary_kl", "kl_old_new"
]
#: Whose ratio weighs a token: its own, the product or the geometric mean of its sequence's.
Spread = Literal["token", "sequence", "geometric"]


def fields(between: Between, measure: Measure) -> tuple[str, ...]:
    """Optional fields of `TokenBatch` that a measure between two policies needs.

    Example:
      >>> fields("new_old", "k3"), fields("old_rollout", "ratio")
      ((), ('logp_rollout',))
    """
    exact = ("kl_old_new",) if measure == "kl_old_new" else ()
    return exact if between == "new_old" else (*exact, "logp_rollout")


def log_ratio(batch: TokenBatch, between: Between) -> Tensor:
    """Log-ratio of two policies, without gradient; new / old where the sampler gave no number.

    Nats; 0 where masked. Shape [batch, time].
    """
    if between == "old_rollout":
        return batch.rollout_log_ratio
    return batch.against("rollout" if between == "new_rollout" else "old").log_ratio.detach()


def measurement(batch: TokenBatch, between: Between, measure: Measure) -> Tensor:
    """A measure of each token; of ``"ratio"`` the logarithm, of ``"k1"`` minus it. [batch, time].

    With r the ratio: ``"tv"`` is abs(r - 1), whose mean over the denominator's samples is twice the
    total variation, ``"exp_abs"`` max(r, 1 / r), and ``"probability"`` the difference of the two
    probabilities.

    Example:
      >>> old, one = torch.tensor([[0.4]]).log(), torch.ones(1, 1)
      >>> batch = TokenBatch(old, old, one, one > 0, logp_rollout=torch.tensor([[0.5]]).log())
      >>> [round(measurement(batch, "old_rollout", name).item(), 4) for name in ("ratio", "k1")]
      [-0.2231, 0.2231]
    """
    if measure == "kl_old_new":
        return batch.given("kl_old_new").detach()
    if measure in ("binary_kl", "probability"):
        numerator = batch.logp_old if between == "old_rollout" else batch.logp.detach()
        denominator = batch.logp_old if between == "new_old" else batch.against("rollout").logp_old
        if measure == "probability":
            return numerator.exp() - denominator.exp()
        pairs = (denominator, numerator), (numerator, denominator)
        return torch.maximum(*(divergences.binary_kl_old_new(*pair) for pair in pairs))
    x = log_ratio(batch, between)
    if measure == "ratio":
        return x
    return _OF_RATIO[measure](x)


_OF_RATIO: dict[str, Callable[[Tensor], Tensor]] = {
    **{"k1": divergences.k1, "k2": divergences.k2, "k3": divergences.k3},
    "tv": lambda x: safe_expm1(x).abs(),
    "exp_abs": lambda x: safe_exp(x.abs()),
}


def within(
    batch: TokenBatch,
    values: Tensor,
    level: Level,
    reduction: Reduction,
    bounds: tuple[float | None, float | None],
) -> Tensor:
    """1 where a measure is within bounds, 0 where not, NaN where it is unknown. [batch, time].

    Compared is the reduction of each token's value (see `measurement`) over what the level covers.
    Both bounds belong to the range; None leaves a side open.
    """
    value = reduce(level, reduction, values, batch.mask)
    low, high = bounds
    is_within = (value >= (-math.inf if low is None else low)) & (
        value <= (math.inf if high is None else high)
    )
    return torch.where(value.isnan(), value, is_within.to(value.dtype))


def log_bounds(floor: float | None, ceiling: float | None) -> tuple[float | None, float | None]:
    """Bounds of a ratio as those of its logarithm.

    Example:
      >>> log_bounds(None, 1.0)
      (None, 0.0)
    """
    low, high = (None if bound is None else math.log(bound) for bound in (floor, ceiling))
    return low, high


def importance(
    batch: TokenBatch,
    between: Between,
    spread: Spread,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Tensor:
    """Importance weight of each token, truncated at bounds. Shape [batch, time].

    Example:
      >>> old = torch.tensor([[0.5, 0.9]]).log()
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    logp_rollout=torch.tensor([[0.4, 0.1]]).log())
      >>> importance(batch, "old_rollout", "token", (None, 2.0))
      tensor([[1.2500, 2.0000]])
    """
    level = "token" if spread == "token" else "sequence"
    reduction: Reduction = "mean" if spread == "geometric" else "sum"
    x = reduce(level, reduction, log_ratio(batch, between), batch.mask)
    weight = safe_exp(x.clamp(max=_LARGEST))
    low, high = bounds
    return weight if low is None and high is None else weight.clamp(min=low, max=high)
