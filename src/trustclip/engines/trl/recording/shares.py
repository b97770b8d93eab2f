"""Shares of gated tokens: by side of the ratio, and by completion."""

from collections.abc import Callable
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
    tokens = batch.mask.sum(dim=1)
    sums = reduce(torch.stack([low.sum(), high.sum(), gated.sum(), tokens.sum()]))
    # A completion without a token has no share; nan marks it, as in TRL.
    rows = gather(torch.stack([low.sum(1), high.sum(1)]).T / tokens[:, None])
    least = rows[:, 0].nan_to_num(nan=torch.inf).min()
    most = rows[:, 1].nan_to_num(nan=-torch.inf).max()
    *gated_sums, count, least, most = torch.cat([sums, torch.stack([least, most])]).tolist()
    names = ("low_mean", "high_mean", "region_mean")
    shares = {name: total / max(count, 1) for name, total in zip(names, gated_sums, strict=True)}
    return shares if least > most else shares | {"low_min": least, "high_max": most}


class GateShares:
    """Share of gated tokens per completion, over the micro-batches and ranks of an update.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> shares = GateShares()
      >>> number = torch.tensor([5])
      >>> shares.add(0 * number, number, batch, tc.method("atr").surrogate(batch))
      >>> shares.read()
      {'generated': [0], 'index': [5], 'gated': [0.5]}
    """

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def add(
        self, generated: Tensor, index: Tensor, batch: TokenBatch, surrogate: Surrogate
    ) -> None:
        """Add a micro-batch: updates before each completion was sampled, and its place. [batch]"""
        gated = (batch.mask & ~surrogate.kept).sum(dim=1)
        self._rows.append(torch.stack([generated, index, gated, batch.mask.sum(dim=1)], dim=1))

    def forget(self) -> None:
        """Drop the micro-batches since the last call of `read`."""
        self._rows = []

    def read(self, gather: Callable[[Tensor], Any] = lambda x: x) -> dict[str, list[Any]]:
        """The shares since the last call, without completions that have no token.

        ``gather`` joins a tensor's rows over ranks, and is called once, on every rank alike.
        """
        rows = gather(torch.cat(self._rows)).tolist()
        self._rows = []
        return {
            "generated": [row[0] for row in rows if row[3]],
            "index": [row[1] for row in rows if row[3]],
            "gated": [row[2] / row[3] for row in rows if row[3]],
        }
