"""The likeliest tokens of a policy, and log-probabilities of a few tokens of each row."""

import torch
from torch import Tensor

from trustclip.constraints.divergences import with_rest
from trustclip.head.further import GATHERED
from trustclip.head.product import Head, Tile, as_head
from trustclip.head.softmax import Running, fold


@torch.no_grad()
def topk(
    hidden: Tensor,
    weight: Tensor | Head,
    k: int,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""The K likeliest tokens and their log-probabilities, without full logits. One product.

    Args:
      hidden: last hidden states $h$. Shape [N, H].
      weight: $W$, or a `Head`. Shape [V, H].
      k: how many, from 1 to V - 1.
      bias: $b$. Shape [V].
      temperature: $T$ in $z = (W h + b)/T$.

    Returns:
      (ids, logp): int64, and nats in float32 at least, without gradient, likeliest first. Both
      [N, K].

    Raises:
      ValueError: k out of range.

    Example:
      >>> hidden = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
      >>> ids, logp = topk(hidden, torch.eye(3).double(), 2)
      >>> ids.tolist(), logp.exp()
      ([[1, 2]], tensor([[0.5000, 0.3000]], dtype=torch.float64))
    """
    head = as_head(weight, bias, temperature)
    if not 1 <= k < head.vocabulary:
        raise ValueError(
            f"`k` must be from 1 to {head.vocabulary - 1}, one less than the vocabulary; got {k}."
        )
    tokens = len(hidden)
    ids = hidden.new_empty(tokens, k, dtype=torch.int64)
    logp = hidden.new_empty(tokens, k, dtype=head.dtype)
    blocks = list(head.blocks(tokens))
    memory = Tile(head, blocks, head.dtype), Tile(head, blocks, head.dtype)
    for block in blocks:
        ids[block], logp[block] = _topk(head, head.operand(hidden[block]), k, memory)
    return ids, logp


def _topk(head: Head, operand: Tensor, k: int, memory: tuple[Tile, Tile]) -> tuple[Tensor, Tensor]:
    rows = len(operand)
    # Both [rows, 0] at first, then [rows, up to K].
    best, ids = operand.new_empty(rows, 0, dtype=head.dtype), operand.new_empty(rows, 0).long()
    running = Running.start(best.new_empty(rows), entropy=False)
    shrink = best.new_empty(rows)
    for columns in head.columns(rows):
        z = head.logits(operand, head.factor(columns), columns, memory[0].of(rows, columns))
        top, place = z.topk(min(k, z.shape[1]), dim=1)
        # [rows, up to 2K]: the best so far and those of this tile.
        best, ids = torch.cat([best, top], dim=1), torch.cat([ids, place + columns.start], dim=1)
        best, place = best.topk(min(k, best.shape[1]), dim=1)
        ids = ids.gather(1, place)
        fold(z, running, memory[1].of(rows, columns), shrink)
    return ids, best.sub_(running.max[:, None]).sub_(running.sum.log()[:, None])


@torch.no_grad()
def logp_of(hidden: Tensor, log_partition: Tensor, head: Head, ids: Tensor) -> Tensor:
    """Log-probabilities of a few tokens of each row: K dot products per token, no product.

    ``log_partition`` is `Scores.log_partition` of these states with the same head.

    Returns:
      Nats, float32 at least, without gradient. Shape [N, K].
    """
    logp = hidden.new_empty(ids.shape, dtype=head.dtype)
    rows = max(1, GATHERED // max(1, ids.shape[1] * head.weight.shape[1]))
    for start in range(0, len(ids), rows):
        block = slice(start, start + rows)
        z = head.logits_of(hidden[block], ids[block])  # [rows, K]
        logp[block] = z.double().sub_(log_partition[block, None])
    return logp


def with_other(logp: Tensor) -> Tensor:
    """Append a column with the log-probability of all other tokens. Shape [N, K + 1]."""
    return with_rest(logp, torch.arange(logp.shape[1], device=logp.device).expand(logp.shape))
