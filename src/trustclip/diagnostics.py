"""What the gate did: per-token quantities as sums and counts, ready to add over ranks and steps."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trustclip import divergences
from trustclip.batch import Surrogate, TokenBatch
from trustclip.masked import masked_sum, safe_exp

Metrics = dict[str, tuple[Tensor, Tensor]]

#: Quadrants by the sign of the advantage and the side of 1 the ratio is on. A ratio of exactly 1
#: belongs to none: no constraint on the ratio can close there.
QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below")

#: Quantiles of the ratio that a `Window` reports.
QUANTILES = (0.01, 0.5, 0.99)

#: Edges of the log-ratio histogram from which quantiles are read, nats: finest around 0, where
#: thresholds are, wide enough for any update that has not already diverged, and with 0 in the
#: middle of a bin, so that an on-policy ratio reads 1.
HISTOGRAM_EDGES = tuple((i + 0.5) * 0.005 for i in range(-201, 201))


def quadrant(name: str, batch: TokenBatch) -> Tensor:
    """True for the unmasked tokens of a quadrant of `QUADRANTS`. Shape [batch, time]."""
    sign, side = name.split("_")
    x, a = batch.log_ratio.detach(), batch.advantages
    in_sign = a > 0 if sign == "positive" else a < 0
    return batch.mask & in_sign & ((x > 0) if side == "above" else (x < 0))


@torch.no_grad()
def token_metrics(batch: TokenBatch, surrogate: Surrogate) -> Metrics:
    r"""Per-token metrics of one batch as (sum, count); divide after adding up.

    ``gated`` is the share of tokens whose gradient was cut; ``gated/<quadrant>`` the same, of all
    tokens, by the sign of the advantage and the side of the ratio; ``ratio`` the mean ratio;
    ``k1``, ``k2``, ``k3`` the mean estimates of the divergence from the old policy in nats (k1 and
    k3 of KL(old || new)); ``off_policy`` the share of tokens with a ratio other than 1;
    ``zero_advantage`` the share that cannot matter (in groups of equal rewards);
    ``nonfinite`` the share whose log-ratio is no finite number; ``entropy``, ``kl_old_new`` and
    ``kl_new_old`` the batch's own, where it has them.

    Args:
      batch: the tokens.
      surrogate: what the method made of them.

    Returns:
      name -> (sum, count), scalars without gradient.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> total, count = token_metrics(batch, tc.method("atr").surrogate(batch))["gated"]
      >>> total.item(), count.item()
      (1.0, 2.0)
    """
    x, mask = batch.log_ratio, batch.mask
    gated = mask & ~surrogate.kept
    finite = x.isfinite()
    values = {
        "gated": gated,
        **{f"gated/{name}": gated & quadrant(name, batch) for name in QUADRANTS},
        "off_policy": x != 0,
        "zero_advantage": batch.advantages == 0,
        "nonfinite": ~finite,
        "ratio": safe_exp(x),
        "k1": divergences.k1(x),
        "k2": divergences.k2(x),
        "k3": divergences.k3(x),
        "entropy": batch.entropy,
        "kl_old_new": batch.kl_old_new,
        "kl_new_old": batch.kl_new_old,
        **surrogate.extras,
    }
    count = mask.sum().to(x.dtype)
    return {
        name: (masked_sum(value.to(x.dtype), mask), count)
        for name, value in values.items()
        if value is not None
    }


@torch.no_grad()
def log_ratio_histogram(batch: TokenBatch) -> Tensor:
    """Counts of the log-ratio between `HISTOGRAM_EDGES`: add over ranks and steps, then read.

    Returns:
      float. Shape [edges + 1]: the first and last bins hold what lies outside.
    """
    x = batch.log_ratio[batch.mask]
    edges = torch.tensor(HISTOGRAM_EDGES, dtype=x.dtype, device=x.device)
    return torch.bincount(torch.bucketize(x, edges), minlength=len(HISTOGRAM_EDGES) + 1).float()


def ratio_quantile(histogram: Tensor, q: float) -> float:
    """Quantile of the ratio from a `log_ratio_histogram`, within half a bin (0.25 %).

    Args:
      histogram: counts. Shape [edges + 1].
      q: in [0, 1].

    Returns:
      The ratio; that of the outermost edge when the quantile lies beyond it, and nan for a
      histogram of nothing.

    Example:
      >>> counts = torch.zeros(len(HISTOGRAM_EDGES) + 1)
      >>> counts[201], counts[211] = 10.0, 4.0
      >>> ratio_quantile(counts, 0.5), round(ratio_quantile(counts, 0.99), 4)
      (1.0, 1.0513)
    """
    total = histogram.sum()
    if total == 0:
        return float("nan")
    place = int(torch.searchsorted(histogram.cumsum(0), q * total))
    edges = HISTOGRAM_EDGES
    low, high = edges[max(place - 1, 0)], edges[min(place, len(edges) - 1)]
    return math.exp((low + high) / 2)


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

    def add(self, batch: TokenBatch, surrogate: Surrogate) -> None:
        """Take in one batch and what the method made of it."""
        for name, (total, count) in token_metrics(batch, surrogate).items():
            before = self._metrics.get(name)
            self._metrics[name] = (
                (total, count) if before is None else (before[0] + total, before[1] + count)
            )
        histogram = log_ratio_histogram(batch)
        self._histogram = histogram if self._histogram is None else self._histogram + histogram

    def state_dict(self) -> dict[str, Any]:
        """Everything taken in, for a checkpoint."""
        return {"metrics": self._metrics, "histogram": self._histogram}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a `state_dict`."""
        self._metrics, self._histogram = state["metrics"], state["histogram"]

    def read(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, float]:
        """Means and quantiles of everything taken in; empty when nothing was.

        Args:
          reduce: sums a tensor over ranks; called once, on every rank alike.
        """
        if self._histogram is None:
            return {}
        names = sorted(self._metrics)
        pairs = torch.stack([torch.stack(self._metrics[name]) for name in names])
        packed = reduce(torch.cat([pairs.flatten().double(), self._histogram.double()])).cpu()
        means = packed[: 2 * len(names)].view(-1, 2)
        summary = {
            name: (total / max(count, 1)).item()
            for name, (total, count) in zip(names, means, strict=True)
        }
        for q in QUANTILES:
            summary[f"ratio_q{round(100 * q):02d}"] = ratio_quantile(packed[2 * len(names) :], q)
        return summary
