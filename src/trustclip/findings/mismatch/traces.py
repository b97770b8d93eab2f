"""The traces that a sampler's mismatch leaves in the differences of log-probabilities; their cause.

See `trustclip.findings.mismatch.agreement`, which puts them into words.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.sampler import Pairs
from trustclip.findings import facts


@dataclass(frozen=True)
class Floor:
    """How much the trainer differs from itself: means of the absolute differences, nats."""

    kernels: float  # in one precision: another batch, another order of the head's sums
    half: float  # that, or bfloat16 against float32, whichever is larger


class Growth(NamedTuple):
    """Means of a first and of a last part, and how many standard errors they are apart."""

    first: float
    last: float
    errors: float

    @property
    def times(self) -> float:
        """The last over the first."""
        return self.last / max(self.first, 1e-30)

    def exceeds(self, times: float, errors: float) -> bool:
        """Whether the last part is so many times the first, and so many errors above it."""
        return self.times > times and self.errors > errors


class Traces:
    """Numbers of the differences d = log p(trainer) - log p(sampler), nats."""

    def __init__(self, pairs: Pairs) -> None:
        a, d = pairs.trainer.double(), pairs.trainer.double() - pairs.sampler.double()
        size = d.abs()
        # A difference of logits moves log p by 1 - p of it.
        relative = per_room(size, a)
        self.tokens = len(d)
        self.mean = size.mean().item()  # of |d|
        self.median = size.median().item()  # of |d|
        self.largest = size.max().item()  # |d|
        self.lowest = d.min().item()  # d
        self.identical = (d == 0).double().mean().item()  # share with d = 0
        self.up = d.clamp(min=0).sum().item()  # sum of the positive d
        self.down = (-d).clamp(min=0).sum().item()  # and of the negative ones, without their sign
        # Share of the sum of |d| on the largest 2 %.
        top = size.sort(descending=True).values[: max(len(d) // 50, 1)].sum() / size.sum()
        self.top = top.nan_to_num().item()
        # Share of tokens in the tail, of the sum of d² on them, and the mean of |d| there.
        tail = in_tail(size, relative)
        self.tail = tail.double().mean().item()
        self.tail_weight = (d[tail].square().sum() / d.square().sum()).nan_to_num().item()
        self.tail_mean = size[tail].mean().nan_to_num().item()
        self.bulk = size[~tail].mean().nan_to_num().item()  # mean of |d| on the others
        ratios = d.clamp(max=10.0).exp()
        self.left_out = 1 - ratios.mean().item()
        self.left_out_z = 0.0
        if d.std() < facts.SKEWED:
            errors = (1 - ratios).mean() / ((1 - ratios).std() / len(d) ** 0.5)
            # 0 where all are alike.
            self.left_out_z = errors.nan_to_num(posinf=0.0, neginf=0.0).item()
        self._of_entropy(d, a, pairs.entropy)
        # Of |d| / (1 - p): on the first tokens, over the others; along the completion, over the
        # floor's; with the updates since sampling.
        self.early = _early(pairs, relative)
        self.depth = _depth(pairs, relative)
        self.stale = _stale(pairs, relative)
        self.floor = _floor_of(pairs)

    def _of_entropy(self, d: Tensor, logp: Tensor, entropy: Tensor | None) -> None:
        """The regression of d on log p + H, and the mean of that: 0 for the policy's own tokens."""
        self.explained = self.slope = self.surprise = self.surprise_z = 0.0
        if entropy is None:
            return
        score = logp + entropy.double()
        self.surprise = score.mean().item()
        error = (score.std() / len(score) ** 0.5).item()
        self.surprise_z = self.surprise / max(error, 1e-30)
        centred_score, centred_d = score - score.mean(), d - d.mean()
        covariance = (centred_score * centred_d).sum().item()
        if centred_score.any() and centred_d.any():
            self.slope = covariance / centred_score.square().sum().item()
            self.explained = self.slope * covariance / centred_d.square().sum().item()  # R²

    @property
    def half(self) -> float:
        """Largest mean difference that half precision explains."""
        if self.floor is None:
            return facts.HALF_PRECISION
        return facts.WITHIN_FLOOR * max(self.floor.half, facts.KERNELS)

    @property
    def other(self) -> float:
        """Mean difference above which it is that of other weights."""
        if self.floor is None:
            return facts.OTHER_WEIGHTS
        return facts.OTHER_THAN_FLOOR * max(self.floor.half, facts.KERNELS)

    @property
    def between(self) -> bool:
        """Whether it is more than kernels make and less than half precision does."""
        if self.floor is None:
            return False
        kernels, half = self.floor.kernels, self.floor.half
        return facts.ABOVE_KERNELS * kernels < self.mean < facts.BELOW_HALF * half


def per_room(size: Tensor, logp: Tensor) -> Tensor:
    """Differences over what 1 - p leaves a token to move. Shape [tokens]."""
    return size / (1 - logp.double().exp()).clamp(min=1e-3)


def in_tail(size: Tensor, relative: Tensor) -> Tensor:
    """Which tokens differ by far more than the others. Shape [tokens]."""
    return (relative > facts.TAIL * relative.median()) & (size > facts.TAIL_LEAST)


def _floor_of(pairs: Pairs) -> Floor | None:
    if not pairs.floor:
        return None
    sizes = {way: v[v.isfinite()].double().abs() for way, v in pairs.floor.items()}
    means = {way: v.mean().item() for way, v in sizes.items() if len(v)}
    if not means:
        return None
    kernels = max((means[way] for way in ("batch", "head") if way in means), default=0.0)
    half = means.get("precision", 0.0)
    return Floor(kernels, max(half, kernels))


def _parts(first: Tensor, last: Tensor) -> Growth | None:
    """Means of two parts, without what lies beyond the 99th percentile of both."""
    if min(len(first), len(last)) < facts.PART:
        return None
    cap = torch.cat([first, last]).quantile(0.99)
    first, last = first.clamp(max=cap), last.clamp(max=cap)
    error = (first.var() / len(first) + last.var() / len(last)).sqrt().item()
    a, b = first.mean().item(), last.mean().item()
    return Growth(a, b, (b - a) / max(error, 1e-30))


def _early(pairs: Pairs, relative: Tensor) -> Growth | None:
    if pairs.position is None:
        return None
    early = pairs.position < facts.EARLY
    return _parts(relative[~early], relative[early])


def _depth(pairs: Pairs, relative: Tensor) -> Growth | None:
    """From the first quarter of the places to the last, beyond what the floor does there."""
    if pairs.position is None or len(pairs.position) < facts.FEWEST_TOKENS:
        return None
    place = pairs.position.double()
    low, high = place.quantile(torch.tensor([0.25, 0.75], dtype=place.dtype, device=place.device))
    first, last = place <= low, place >= high
    growth = _parts(relative[first], relative[last])
    change = (pairs.floor or {}).get("precision")
    if growth is None or change is None:
        return growth
    own, finite = per_room(change.abs(), pairs.trainer), change.isfinite()
    usual = _parts(own[first & finite], own[last & finite])
    return growth if usual is None else growth._replace(last=growth.last / max(usual.times, 1.0))


def _stale(pairs: Pairs, relative: Tensor) -> Growth | None:
    if pairs.lag is None or pairs.lag.min() == pairs.lag.max():
        return None
    lag = pairs.lag.double()
    return _parts(relative[lag == lag.min()], relative[lag >= lag[lag > lag.min()].median()])


def _grows(growth: Growth | None) -> bool:
    return growth is not None and growth.exceeds(facts.GROWS, facts.GROWS_ERRORS)


def cause_of(traces: Traces) -> str:
    if traces.mean <= facts.KERNELS and traces.largest <= facts.KERNELS_MOST:
        return "none"
    concentrated = traces.top >= facts.OUTLIERS and traces.median <= facts.OUTLIERS_MEDIAN
    if concentrated and traces.tail_mean > facts.FAR:
        return "outliers"
    if _is_temperature(traces):
        return "temperature"
    below = traces.left_out > facts.SHIFT_BELOW and traces.left_out_z > facts.SHIFT
    if traces.up <= facts.ONE_SIDED * traces.down or below:
        # What a truncated sampler draws is likelier than the entropy says, not less likely.
        close = traces.mean < facts.FAR
        return "prompt" if unlikely(traces) else "truncation" if close else "weights"
    above = traces.left_out < -facts.SHIFT_ABOVE and traces.left_out_z < -facts.SHIFT
    if traces.down <= facts.ONE_SIDED * traces.up or above:
        return "padding"
    return _two_sided_cause(traces, concentrated)


def _two_sided_cause(traces: Traces, concentrated: bool) -> str:
    """The cause of noise on both sides."""
    if _grows(traces.stale):
        return "stale"
    if _grows(traces.depth):
        return "depth"
    early = traces.early  # where the first tokens of a completion differ most
    far = early is not None and early.exceeds(facts.EARLY_TIMES, facts.EARLY_ERRORS)
    if far and traces.mean > traces.half:
        return "prompt"
    fewest, most = facts.TAIL_TOKENS
    heavy = traces.tail_weight >= facts.TAIL_WEIGHT and fewest <= traces.tail <= most
    if concentrated or (heavy and traces.bulk <= traces.other):
        return "tail"
    return "precision" if traces.mean <= traces.other else "weights"


def _is_temperature(traces: Traces) -> bool:
    one_sided = min(traces.up, traces.down) <= facts.ONE_SIDED * max(traces.up, traces.down)
    if traces.explained >= facts.EXPLAINED and not one_sided:
        return True
    # Far from the trainer's temperature the effect is neither linear nor on both sides.
    far = traces.largest > facts.FAR and traces.explained >= facts.EXPLAINED_FAR
    return far and not unlikely(traces)


def likely(traces: Traces) -> bool:
    return traces.surprise_z > facts.SURPRISE and traces.surprise > facts.SURPRISE_MEAN


def unlikely(traces: Traces) -> bool:
    return traces.surprise_z < -facts.SURPRISE and traces.surprise < -facts.SURPRISE_MEAN
