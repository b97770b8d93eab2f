"""Shares of gated tokens: by side of the ratio, and by completion."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.batch import Surrogate, TokenBatch


def clip_ratios(
    batch: TokenBatch,
    surrogate: Surrogate,
    reduce: Callable[[Tensor], Tensor] = lambda x: x,
    gather: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, float]:
    """Shares of gated tokens below and above ratio 1, named as TRL's ``clip_ratio/*``.

    Returns:
      ``low_mean``, ``high_mean`` and ``region_mean`` over all tokens; ``low_min`` and ``high_max``
      over completions, unless none of them has a token.
    """
    gated = batch.mask & ~surrogate.kept
    x = batch.log_ratio
    low, high = (gated & (x < 0)).float(), (gated & (x > 0)).float()
    tokens = batch.mask.sum(dim=1)  # [batch]
    sums = reduce(torch.stack([low.sum(), high.sum(), gated.sum(), tokens.sum()]))
    # A completion without a token has no share; nan marks it, as in TRL.
    least = (low.sum(1) / tokens).nan_to_num(nan=torch.inf).min()
    most = (high.sum(1) / tokens).nan_to_num(nan=-torch.inf).max()
    ends = gather(torch.stack([least, most])[None])  # ranks may have other numbers. [ranks, 2]
    least, most = ends[:, 0].min(), ends[:, 1].max()
    *gated_sums, count, least, most = torch.cat([sums, torch.stack([least, most])]).tolist()
    names = ("low_mean", "high_mean", "region_mean")
    shares = {name: total / max(count, 1) for name, total in zip(names, gated_sums, strict=True)}
    return shares if least > most else shares | {"low_min": least, "high_max": most}


def gate_counts(inputs: Mapping[str, Any], batch: TokenBatch, surrogate: Surrogate) -> Tensor:
    """Of each completion of a micro-batch its generation, its place there, gated tokens and tokens.

    Shape [batch, 4].
    """
    gated = (batch.mask & ~surrogate.kept).sum(dim=1)
    place = (inputs["generated"], inputs["sample_index"])
    return torch.stack([*place, gated, batch.mask.sum(dim=1)], dim=1)


def gate_shares(counts: Tensor) -> dict[str, list[Any]]:
    """Share of gated tokens of each completion with a token, from `gate_counts` of all ranks.

    Example:
      >>> gate_shares(torch.tensor([[0, 5, 1, 2], [0, 6, 0, 0]]))
      {'generated': [0], 'index': [5], 'gated': [0.5]}
    """
    rows = [row for row in counts.tolist() if row[3]]
    return {
        "generated": [row[0] for row in rows],
        "index": [row[1] for row in rows],
        "gated": [row[2] / row[3] for row in rows],
    }
