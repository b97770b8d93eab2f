"""The likeliest tokens of a policy, and log-probabilities of a few tokens of each row."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trustclip.constraints.divergences import with_rest
from trustclip.head.product import Head, Tile, as_head
from trustclip.head.softmax import Running, fold

#: Gathered rows of the weight that a block of tokens holds, in numbers: 64 MiB of float32.
GATHERED = 1 << 24


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
    return _gathered_logits(head, hidden, ids).double().sub_(log_partition[:, None]).to(head.dtype)


def with_other(logp: Tensor) -> Tensor:
    """Append a column with the log-probability of all other tokens. Shape [N, K + 1]."""
    return with_rest(logp, torch.arange(logp.shape[1], device=logp.device).expand(logp.shape))


def further_logps(
    hidden: Tensor, head: Head, ids: Tensor, logp: Tensor, further: Tensor | None
) -> Tensor:
    r"""Log-probabilities of further tokens of each row, from that of the row's own token.

    $\log\pi(v) = z_v - z_y + \log\pi(y)$: the partition function, and its gradient, are those that
    the head has computed for $y$, so K tokens cost K + 1 dot products a row. The gathered rows of
    the weight are held one block at a time; backward gathers them again.

    Args:
      hidden: last hidden states $h$. Shape [N, H].
      head: the head.
      ids: $y$, int64; rows of a negative one are left out. Shape [N].
      logp: $\log\pi(y)$ by this head, nats; carries its gradient. Shape [N].
      further: $v$, integers; the whole vocabulary in its order when None, at one product.
        Shape [N, K].

    Returns:
      Nats, float32 at least; 0 in rows left out. Shape [N, K].

    Example:
      >>> from trustclip.head import selected_logprobs
      >>> h, y = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([1])
      >>> head = Head.of(torch.eye(3))
      >>> logp, _ = selected_logprobs(h, head, y)
      >>> further_logps(h, head, y, logp, torch.tensor([[0, 2]])).exp()
      tensor([[0.5000, 0.2000]])
    """
    valid = (ids >= 0).nonzero().squeeze(1)
    rows, own = hidden[valid], ids[valid, None]
    width = head.vocabulary if further is None else further.shape[1]
    with torch.autocast(hidden.device.type, enabled=False):
        if further is None:
            z = head.logits_of(rows, None)  # [rows, V]
            gap = z - z.gather(1, own)
        else:
            chosen = torch.cat([own, further[valid].long()], dim=1)
            z = _gathered_logits(head, rows, chosen)  # [rows, K + 1]
            gap = z[:, 1:] - z[:, :1]
    logps = gap + logp[valid, None]  # [rows, K]
    return logps.new_zeros(len(ids), width).index_copy(0, valid, logps)


def _gathered_logits(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    """Logits of a few tokens of each row, one block of rows at a time. Shape [N, K]."""

    def of_block(rows: Tensor, chosen: Tensor) -> Tensor:
        # With a graph the gathered rows would stay in memory until backward: recompute them there.
        if not torch.is_grad_enabled():
            return head.logits_of(rows, chosen)
        return checkpoint(head.logits_of, rows, chosen, use_reentrant=False)  # type: ignore[return-value]

    step = max(1, GATHERED // max(1, ids.shape[1] * hidden.shape[1]))
    return torch.cat([*map(of_block, hidden.split(step), ids.split(step))])
