"""Quantiles from histograms: counts between fixed edges, which add up over batches and ranks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def bin_counts(x: Tensor, edges: Sequence[float], where: Tensor, even: bool = False) -> Tensor:
    """Number of values between each two edges: add over ranks and steps, then `quantile`.

    Edges ascend; the first and last bins hold what lies outside. float, shape [edges + 1]. The mask
    ``where`` is added up, not applied, so that no device is waited for. Edges that are ``even``,
    each as far from the next, are counted in a tenth of the time: a bin is then a quotient.
    """
    if even:
        width = (edges[-1] - edges[0]) / (len(edges) - 1)
        place = x.sub(edges[0]).div_(width).ceil_().nan_to_num_(0).clamp_(0, len(edges))
        bins = place.flatten().long()  # [values]
    else:
        bounds = torch.tensor(edges, dtype=x.dtype, device=x.device)
        bins = torch.bucketize(x, bounds).flatten()  # [values]
    counts = torch.zeros(len(edges) + 1, dtype=torch.int64, device=x.device)
    return counts.index_add_(0, bins, where.flatten().long()).float()


def quantile(histogram: Tensor, edges: Sequence[float], q: float) -> float:
    """Middle of the bin that a quantile lies in, from its `bin_counts`.

    The outermost edge when the quantile lies beyond it, and nan for an empty histogram.

    Example:
      >>> quantile(torch.tensor([0.0, 3.0, 1.0, 0.0]), (0, 1, 2), 0.5)
      0.5
    """
    total = histogram.sum()
    if total == 0:
        return math.nan
    # Of integers: under deterministic algorithms a GPU sums no running total of floats.
    position = int(torch.searchsorted(histogram.long().cumsum(0).double(), q * total.double()))
    return (edges[max(position - 1, 0)] + edges[min(position, len(edges) - 1)]) / 2
