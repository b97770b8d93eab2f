"""Quantiles from histograms: counts between fixed edges, which add up over batches and ranks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def counted(x: Tensor, edges: Sequence[float]) -> Tensor:
    """Number of values between each two edges: add over ranks and steps, then `quantile`.

    Args:
      x: the values.
      edges: in ascending order.

    Returns:
      float. Shape [edges + 1]: the first and last bins hold what lies outside.
    """
    bounds = torch.tensor(edges, dtype=x.dtype, device=x.device)
    return torch.bincount(torch.bucketize(x, bounds), minlength=len(edges) + 1).float()


def quantile(histogram: Tensor, edges: Sequence[float], q: float) -> float:
    """Middle of the bin that a quantile lies in.

    Args:
      histogram: counts. Shape [edges + 1].
      edges: those of the bins.
      q: in [0, 1].

    Returns:
      The outermost edge when the quantile lies beyond it, and nan for an empty histogram.

    Example:
      >>> quantile(torch.tensor([0.0, 3.0, 1.0, 0.0]), (0, 1, 2), 0.5)
      0.5
    """
    total = histogram.sum()
    if total == 0:
        return math.nan
    place = int(torch.searchsorted(histogram.cumsum(0), q * total))
    return (edges[max(place - 1, 0)] + edges[min(place, len(edges) - 1)]) / 2
