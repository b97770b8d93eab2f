"""The marks that a sampler's mismatch leaves in the differences of log-probabilities; their cause.

See `trustclip.recipes.watch.agreement`, which puts them into words.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from trustclip.constraints.sampler import Pairs

Cause = Literal[
    "none",
    "precision",
    "tail",
    "temperature",
    "truncation",
    "padding",
    "outliers",
    "context",
    "weights",
]

#: Fewer tokens than this carry no mark.
FEWEST = 50
#: Differences that float32 makes: mean and largest, nats.
ROUNDING, ROUNDING_MOST = 1e-4, 1e-2
#: Mean difference of healthy half precision, nats: published engines are between 0.005 and 0.05.
HALF = 0.05
#: Mean difference below which noise on both sides is not taken for other weights, nats.
PRECISION = 0.1
#: Share of the variance of the differences that a temperature explains to first order; the same
#: where a difference exceeds `FAR` nats; and from which on its size is stated.
EXPLAINED, EXPLAINED_FAR, EXACT = 0.8, 0.4, 0.9
#: No truncated distribution leaves out so much of itself, nats.
FAR = 2.0
#: Least sum of one side's differences over that of the other, for two sides.
ONE_SIDED = 0.1
#: Outliers: the largest 2 % have this share of all differences, and the median is below that, nats.
OUTLIERS, OUTLIERS_MEDIAN = 0.9, 0.01
#: A token is in the tail if it differs by this many medians, each difference over 1 - p, and by
#: these nats; a tail has this share of all squared differences, and a share of the tokens in here.
TAIL, TAIL_LEAST, TAIL_WEIGHT, TAIL_TOKENS = 8.0, 0.1, 0.5, (0.01, 0.2)
#: A mean ratio is off 1 by these standard errors; and by this share below it, or above. Beyond this
#: standard deviation of the differences, nats, ratios are too skewed for a mean.
SHIFT, SHIFT_BELOW, SHIFT_ABOVE, SKEWED = 6.0, 0.015, 0.05, 0.5
#: Tokens at the beginning of a completion, on which another prompt shows most.
EARLY = 3
#: Standard errors and nats by which tokens are likelier, or less likely, than their entropy says.
SURPRISE, SURPRISE_MEAN = 5.0, 0.03


@dataclass(frozen=True)
class Marks:
    """Numbers of the differences d = log p(trainer) - log p(sampler), nats."""

    tokens: int
    mean: float  # of |d|
    median: float  # of |d|
    largest: float  # |d|
    lowest: float  # d
    identical: float  # share with d = 0
    up: float  # sum of the positive d
    down: float  # and of the negative ones, without their sign
    top: float  # share of the sum of |d| on the largest 2 %
    tail: float  # share of tokens in the tail
    tail_weight: float  # share of the sum of d² on them
    tail_mean: float  # of |d| on them
    bulk: float  # mean of |d| on the others
    left_out: float  # 1 - mean of exp(d)
    left_out_z: float
    explained: float  # R² of d on log p + H
    slope: float  # of the same
    surprise: float  # mean of log p + H: 0 for tokens that the trainer's policy drew
    surprise_z: float


def marks_of(pairs: Pairs) -> Marks:
    a, d = pairs.trainer.double(), pairs.trainer.double() - pairs.sampler.double()
    size = d.abs()
    most = size.sort(descending=True).values[: max(len(d) // 50, 1)].sum() / size.sum()
    # A difference of logits moves log p by 1 - p of it.
    moved = size / (1 - a.exp()).clamp(min=1e-3)
    tail = (moved > TAIL * moved.median()) & (size > TAIL_LEAST)
    kept = d.clamp(max=10.0).exp()
    explained = slope = surprise = error = 0.0
    if pairs.entropy is not None:
        score = a + pairs.entropy.double()
        surprise, error = score.mean().item(), (score.std() / len(score) ** 0.5).item()
        varied, off = score - score.mean(), d - d.mean()
        both = (varied * off).sum().item()
        if varied.any() and off.any():
            slope = both / varied.square().sum().item()
            explained = slope * both / off.square().sum().item()  # R²
    return Marks(
        tokens=len(d),
        mean=size.mean().item(),
        median=size.median().item(),
        largest=size.max().item(),
        lowest=d.min().item(),
        identical=(d == 0).double().mean().item(),
        up=d.clamp(min=0).sum().item(),
        down=(-d).clamp(min=0).sum().item(),
        top=most.nan_to_num().item(),
        tail=tail.double().mean().item(),
        tail_weight=(d[tail].square().sum() / d.square().sum()).nan_to_num().item(),
        tail_mean=size[tail].mean().nan_to_num().item(),
        bulk=size[~tail].mean().nan_to_num().item(),
        left_out=1 - kept.mean().item(),
        left_out_z=_errors(1 - kept) if d.std() < SKEWED else 0.0,
        explained=explained,
        slope=slope,
        surprise=surprise,
        surprise_z=surprise / max(error, 1e-30),
    )


def _errors(x: Tensor) -> float:
    """Mean in standard errors; 0 where all are alike."""
    return (x.mean() / (x.std() / len(x) ** 0.5)).nan_to_num(posinf=0.0, neginf=0.0).item()


def cause_of(marks: Marks) -> Cause:
    if marks.mean <= ROUNDING and marks.largest <= ROUNDING_MOST:
        return "none"
    concentrated = marks.top >= OUTLIERS and marks.median <= OUTLIERS_MEDIAN
    if concentrated and marks.tail_mean > FAR:
        return "outliers"
    if _scaled(marks):
        return "temperature"
    below = marks.left_out > SHIFT_BELOW and marks.left_out_z > SHIFT
    if marks.up <= ONE_SIDED * marks.down or below:
        # What a truncated sampler draws is likelier than the entropy says, not less likely.
        return "context" if unlikely(marks) else "truncation" if marks.mean < FAR else "weights"
    if marks.down <= ONE_SIDED * marks.up or _above(marks):
        return "padding"
    fewest, most = TAIL_TOKENS
    heavy = marks.tail_weight >= TAIL_WEIGHT and fewest <= marks.tail <= most
    if concentrated or (heavy and marks.bulk <= PRECISION):
        return "tail"
    return "precision" if marks.mean <= PRECISION else "weights"


def _above(marks: Marks) -> bool:
    return marks.left_out < -SHIFT_ABOVE and marks.left_out_z < -SHIFT


def _scaled(marks: Marks) -> bool:
    one_sided = min(marks.up, marks.down) <= ONE_SIDED * max(marks.up, marks.down)
    if marks.explained >= EXPLAINED and not one_sided:
        return True
    # Far from the trainer's temperature the effect is neither linear nor on both sides.
    return marks.largest > FAR and marks.explained >= EXPLAINED_FAR and not unlikely(marks)


def likely(marks: Marks) -> bool:
    return marks.surprise_z > SURPRISE and marks.surprise > SURPRISE_MEAN


def unlikely(marks: Marks) -> bool:
    return marks.surprise_z < -SURPRISE and marks.surprise < -SURPRISE_MEAN
