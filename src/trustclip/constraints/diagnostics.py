"""Diagnostics of the gate: per-token sums and counts that add up over ranks and steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import divergences, drift, sampler
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import Metrics, Surrogate, TokenBatch
from trustclip.constraints.compiled import constant
from trustclip.constraints.gates import moves_outward
from trustclip.constraints.masked import masked_sum, safe_exp, seen_finite, zero_masked
from trustclip.constraints.quantiles import bin_counts, quantile

#: Quadrants by the sign of the advantage and the side of 1 the ratio is on. A ratio of exactly 1
#: belongs to none: no constraint on the ratio can close there.
QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below")

#: Edges of the buckets of old probabilities: the rare tokens, and those that are nearly sure.
P_OLD_EDGES = (0, 0.01, 0.1, 0.5, 0.9, 1)

#: Edges of the buckets of entropy, nats. Fixed, not quantiles of a batch: so sums add up over
#: micro-batches and ranks, and one run's buckets are another's.
ENTROPY_EDGES = (0, 0.01, 0.1, 0.5, 1, math.inf)

#: Log-ratios up to this are rounding, nats: in float32 two ways to the same log-probability differ
#: by some 1e-6.
ROUNDING = 1e-5

#: Quantiles of the ratio that a `Window` reports.
QUANTILES = (0.01, 0.5, 0.99)

#: Shares for which a `Window` also reports the number of tokens: their buckets differ in size.
_WITH_COUNTS = ("gated/p_old_", "gated/entropy_")

#: Edges of the log-ratio histogram from which quantiles are read, nats: finest around 0, where
#: thresholds are, wide enough for any update that has not already diverged, and with 0 in the
#: middle of a bin, so that an on-policy ratio reads 1.
HISTOGRAM_EDGES = tuple((i + 0.5) * 0.005 for i in range(-201, 201))


def quadrants(batch: TokenBatch) -> dict[str, Tensor]:
    """True for the unmasked tokens of each of `QUADRANTS`, by its name. Each [batch, time]."""
    x, a = batch.log_ratio.detach(), batch.advantages
    signs, sides = (batch.mask & (a > 0), batch.mask & (a < 0)), (x > 0, x < 0)
    pairs = (sign & side for sign in signs for side in sides)
    return dict(zip(QUADRANTS, pairs, strict=True))


@torch.no_grad()
def token_metrics(
    batch: TokenBatch,
    surrogate: Surrogate,
    method: Method | None = None,
    parts: bool = True,
    kinds: bool = True,
) -> Metrics:
    r"""Per-token metrics of one batch as (sum, count); divide after adding up.

    All are over tokens with finite numbers (`TokenBatch.finite`), except ``nonfinite``, the
    share of those that are not.

    ``gated`` is the share of tokens whose gradient was cut; ``gated/<quadrant>`` the same, of all
    tokens, by the sign of the advantage and the side of the ratio; ``ratio`` the mean ratio, and
    ``ratio_squared`` that of its square, from which a `Window` makes ``ess``, the effective sample
    size over the number of tokens, $(\sum w)^2 / (N\sum w^2)$;
    ``k1``, ``k2``, ``k3`` the mean estimates of the divergence from the old policy in nats (k1 and
    k3 of KL(old || new)); ``off_policy`` the share of tokens moved by more than `ROUNDING`;
    ``zero_advantage`` the share that cannot matter (in groups of equal rewards); ``entropy``,
    ``kl_old_new`` and ``kl_new_old`` those of the batch, where it has them; and those of
    `parts_gated`, `gate_effects`, `agreement` and, with a sampler's log-probabilities,
    `trustclip.constraints.sampler.sampler_metrics`, with candidates
    `trustclip.constraints.drift.drift_metrics`.

    Without a method `agreement`, the drift and the gate's share against the sampler are left out,
    without ``kinds`` `parts_gated` and the sampler's distances by lag, and without ``parts`` all
    that is over a part of the tokens.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> total, count = token_metrics(batch, tc.method("atr").surrogate(batch))["gated"]
      >>> total.item(), count.item()
      (1.0, 2.0)
    """
    whole, unmasked = batch, batch.mask
    if not seen_finite(batch.logp):  # a NaN there tells of one in any other field
        batch = replace(batch, mask=batch.finite)
    x, mask = batch.log_ratio, batch.mask
    gated = mask & ~surrogate.kept  # [batch, time]
    ratio = zero_masked(safe_exp(x), mask)
    given = {name: getattr(batch, name) for name in ("entropy", "kl_old_new", "kl_new_old")}
    given |= {name: zero_masked(value, mask) for name, value in surrogate.extras.items()}
    sums = {
        "gated": gated.count_nonzero(),
        **{f"gated/{k}": (gated & those).count_nonzero() for k, those in quadrants(batch).items()},
        "off_policy": (mask & (x.abs() > ROUNDING)).count_nonzero(),
        "zero_advantage": (mask & (batch.advantages == 0)).count_nonzero(),
        "ratio": ratio.sum(),
        "ratio_squared": ratio.square().sum(),
        "k1": divergences.k1(x).sum(),  # 0 where masked, as the two below
        "k2": divergences.k2(x).sum(),
        "k3": divergences.k3(x).sum(),
        **{name: value.sum() for name, value in given.items() if value is not None},
    }
    count, every = mask.count_nonzero().to(x.dtype), unmasked.count_nonzero().to(x.dtype)
    means = {name: (total.to(x.dtype), count) for name, total in sums.items()}
    means["nonfinite"] = (every - count, every)
    delta = None if method is None else kl_threshold(method)
    means |= gate_effects(batch, gated)
    if parts and kinds:
        means |= parts_gated(batch, gated)
    if parts:
        means |= {} if delta is None else agreement(batch, gated, delta)
        means |= {} if method is None else drift.drift_metrics(batch, method)
    return {**means, **sampler.sampler_metrics(whole, method, lags=parts and kinds)}


def parts_gated(batch: TokenBatch, gated: Tensor) -> Metrics:
    r"""Share of gated tokens among those of one kind (old probability, position, entropy).

    ``gated/p_old_LOW_HIGH`` among tokens of an old probability above LOW and up to HIGH (see
    `P_OLD_EDGES`); ``gated/position_1`` to ``_4`` in the first to the last quarter of a completion;
    ``gated/entropy_LOW_HIGH`` where the policy has that entropy (nats; see `ENTROPY_EDGES`), if the
    batch has entropies. The gradient was cut where ``gated`` is True, here and below.

    Example:
      >>> old = torch.tensor([[0.005, 0.3, 0.4, 0.95]]).log()
      >>> batch = TokenBatch(old, old, torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool))
      >>> shares = parts_gated(batch, torch.tensor([[True, True, False, False]]))
      >>> [[x.item() for x in shares[f"gated/p_old_{name}"]] for name in ("0_0.01", "0.1_0.5")]
      [[1.0, 1.0], [1.0, 2.0]]
    """
    mask = batch.mask
    # Quarter of its completion, 0 to 3, for each token: [batch, time].
    place = (mask.cumsum(dim=1) - 1).clamp(min=0) * 4 // mask.sum(dim=1, keepdim=True).clamp(min=1)
    kinds: list[tuple[list[str], Tensor, Sequence[float]]] = [
        (ranges("p_old", P_OLD_EDGES), batch.p_old, P_OLD_EDGES),
        ([f"position_{i}" for i in range(1, 5)], place, range(-1, 4)),
    ]
    if batch.entropy is not None:
        kinds.append((ranges("entropy", ENTROPY_EDGES), batch.entropy, ENTROPY_EDGES))
    pairs: Metrics = {}
    for names, x, edges in kinds:
        # Tokens beyond each edge, gated ones and all; those of a bucket are a difference.
        above = [mask, *(mask & (x > edge) for edge in edges[1:-1])]
        counts = [(gated & among).count_nonzero() for among in above]
        beyond = torch.stack([*counts, *(among.count_nonzero() for among in above)])
        tails = beyond.view(2, len(names)).to(batch.logp_old.dtype)  # [2, buckets]
        sums = tails - torch.nn.functional.pad(tails[:, 1:], (0, 1))
        pairs |= {f"gated/{name}": (sums[0, i], sums[1, i]) for i, name in enumerate(names)}
    return pairs


def ranges(what: str, edges: Sequence[float]) -> list[str]:
    """Names of the buckets between edges: ``WHAT_LOW_HIGH``."""
    return [f"{what}_{low:g}_{high:g}" for low, high in pairwise(edges)]


def gate_effects(batch: TokenBatch, gated: Tensor) -> Metrics:
    r"""Share of the advantages on gated tokens, and what the gate does to the entropy.

    ``advantage_cut`` is the share of $\sum|A|$ on gated tokens. Where the batch has entropies,
    ``entropy_slope/kept`` and ``entropy_slope/cut`` are minus the covariance of Theorem 5.2,
    $-w A I (\log\pi + \mathcal H)$ with $I$ the kept or the gated tokens: the change of entropy, to
    first order and per unit of step size, that the kept tokens cause and that the gated ones would
    have caused.

    Example:
      >>> old = torch.tensor([[0.5, 0.5]]).log()
      >>> batch = TokenBatch(torch.tensor([[0.5, 1.0]]).log(), old, torch.tensor([[1.0, -3.0]]),
      ...                    torch.ones(1, 2, dtype=torch.bool))
      >>> total, count = gate_effects(batch, torch.tensor([[False, True]]))["advantage_cut"]
      >>> total.item(), count.item()
      (3.0, 4.0)
    """
    size = batch.advantages.abs()  # 0 where masked
    pairs = {"advantage_cut": (masked_sum(size, gated), size.sum())}
    if batch.entropy is not None:
        slope, count = entropy_slope(batch), batch.mask.sum().to(size.dtype)
        pairs["entropy_slope/cut"] = (masked_sum(slope, gated), count)
        pairs["entropy_slope/kept"] = (masked_sum(slope, ~gated), count)
    return pairs


def entropy_slope(batch: TokenBatch) -> Tensor:
    r"""What each token does to the entropy: minus the covariance of Theorem 5.2.

    $-w A (\log\pi + \mathcal H)$, the change of the mean entropy, to first order and per unit of
    step size, that the token causes if its gradient is kept; 0 where masked. Shape [batch, time].

    Raises:
      ValueError: there are no entropies.

    Example:
      >>> old = torch.tensor([[0.9, 0.1]]).log()
      >>> batch = TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                    entropy=torch.full((1, 2), 0.5))
      >>> [round(x, 2) for x in entropy_slope(batch)[0].tolist()]
      [-0.39, 1.8]
    """
    slope = -safe_exp(batch.log_ratio) * batch.advantages * (batch.logp + batch.given("entropy"))
    return zero_masked(slope, batch.mask)


def agreement(batch: TokenBatch, gated: Tensor, delta: float) -> Metrics:
    """Agreement of the gate with one on the exact KL divergence, on the same tokens.

    ``agreement/precision`` is the share of the gated tokens that method ``full_kl`` would have
    gated, too, at the same threshold, and ``agreement/recall`` the share of those it would have
    gated that are; nothing where the batch has no ``kl_old_new``. ``delta`` is in nats.

    Example:
      >>> old = torch.full((1, 3), -1.0)
      >>> batch = TokenBatch(old + 0.5, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool),
      ...                    kl_old_new=torch.tensor([[0.1, 0.01, 0.1]]))
      >>> pairs = agreement(batch, torch.tensor([[True, True, False]]), 0.07)
      >>> [(total / count).item() for total, count in pairs.values()]
      [0.5, 0.5]
    """
    if batch.kl_old_new is None:
        return {}
    # Compared where a step would move the ratio outward: elsewhere `full_kl` keeps every token.
    outward = moves_outward(batch.log_ratio, batch.advantages)
    exact = batch.mask & outward & (batch.kl_old_new > delta)
    gated = batch.mask & outward & gated
    both = (exact & gated).sum().to(batch.logp.dtype)
    return {
        "agreement/precision": (both, gated.sum().to(both.dtype)),
        "agreement/recall": (both, exact.sum().to(both.dtype)),
    }


@constant
def kl_threshold(method: Method) -> float | None:
    """A method's bound, in nats, on an estimate of each token's KL divergence; None without one.

    Example:
      >>> import trustclip as tc
      >>> kl_threshold(tc.method("kl2", delta=0.05)), kl_threshold(tc.method("clip"))
      (0.05, None)
    """
    if Trait.ESTIMATES_KL in method.traits:
        return getattr(method, "delta")  # noqa: B009
    parts = getattr(method, "parts", ())
    return kl_threshold(parts[0]) if parts else None


class Window:
    """Metrics between two log lines, over any number of batches and ranks.

    Example:
      >>> import torch, trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> window = Window()
      >>> window.add(batch, tc.method("atr").surrogate(batch))
      >>> window.read()["gated"]
      0.5
    """

    def __init__(self) -> None:
        self._metrics: Metrics = {}
        self._histogram: Tensor | None = None
        self._sampler: Tensor | None = None  # histogram of the log-ratio to the sampler

    @torch.no_grad()
    def add(
        self,
        batch: TokenBatch,
        surrogate: Surrogate,
        method: Method | None = None,
        kinds: bool = True,
    ) -> None:
        """Add one batch and the method's surrogate of it; ``kinds`` as in `token_metrics`."""
        for name, (total, count) in token_metrics(batch, surrogate, method, kinds=kinds).items():
            before, tokens = self._metrics.get(name, (0, 0))
            self._metrics[name] = total + before, count + tokens
        ratios = bin_counts(batch.log_ratio, HISTOGRAM_EDGES, batch.finite, even=True)
        self._histogram = _add(self._histogram, ratios)
        self._sampler = _add(self._sampler, sampler.log_ratio_histogram(batch))

    def state_dict(self) -> dict[str, Any]:
        """The accumulated sums, for a checkpoint."""
        return {
            "metrics": self._metrics,
            "histogram": self._histogram,
            "sampler": self._sampler,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._metrics, self._histogram = state["metrics"], state["histogram"]
        self._sampler = state["sampler"]

    def read(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, float]:
        """Means and quantiles of all batches added; empty if they held no token.

        A share among tokens of a kind is left out if there was no such token. ``tokens`` are all
        that were measured, ``tokens/p_old_LOW_HIGH`` and ``tokens/entropy_LOW_HIGH`` those of the
        buckets of `parts_gated`. ``reduce`` sums a tensor over ranks, once on every rank.
        """
        if self._histogram is None:
            return {}
        names = sorted(self._metrics)
        pairs = torch.stack([torch.stack(self._metrics[name]) for name in names])  # [names, 2]
        # One reduction for everything: a collective call costs more than the numbers in it.
        histograms = [h for h in (self._histogram, self._sampler) if h is not None]
        parts = [pairs.flatten().double(), *(h.double() for h in histograms)]
        packed = reduce(torch.cat(parts)).cpu()
        sums = packed[2 * len(names) :].split([len(h) for h in histograms])
        means = packed[: 2 * len(names)].view(-1, 2)
        tokens, finite = (means[names.index(name), 1] for name in ("nonfinite", "gated"))
        if tokens == 0:
            return {}
        # An empty share is 0, but nan where no token at all was finite.
        empty = 0.0 if finite > 0 else math.nan
        summary = {
            name: (total / count).item() if count > 0 else empty
            for name, (total, count) in zip(names, means, strict=True)
            if count > 0 or "/" not in name
        }
        summary |= {
            name.replace("gated", "tokens", 1): count.item()
            for name, (_, count) in zip(names, means, strict=True)
            if name == "gated" or name.startswith(_WITH_COUNTS)
        }
        # At most 1, by the Cauchy-Schwarz inequality.
        summary["ess"] = summary["ratio"] ** 2 / max(summary.pop("ratio_squared"), 1e-30)
        for q in QUANTILES:
            log_ratio = quantile(sums[0], HISTOGRAM_EDGES, q)  # within half a bin, 0.25 %
            summary[f"ratio_q{round(100 * q):02d}"] = math.exp(log_ratio)
        return sampler.summary(summary, sums[1] if len(sums) > 1 else None)


def _add(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    return more if total is None else total if more is None else total + more
