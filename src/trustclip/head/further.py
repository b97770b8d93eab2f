"""Log-probabilities of further tokens at each position, beside the sampled one, with a gradient."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trustclip.head.product import Head

#: Gathered rows of the weight that a block of tokens holds, in numbers: 64 MiB of float32.
GATHERED = 1 << 24


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
            step = max(1, GATHERED // max(1, (width + 1) * hidden.shape[1]))
            chosen = torch.cat([own, further[valid].long()], dim=1)
            blocks = zip(rows.split(step), chosen.split(step), strict=True)
            z = torch.cat([_gathered_logits(head, *block) for block in blocks])  # [rows, K + 1]
            gap = z[:, 1:] - z[:, :1]
    logps = gap + logp[valid, None]  # [rows, K]
    return logps.new_zeros(len(ids), width).index_copy(0, valid, logps)


def _gathered_logits(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    # With a graph the gathered rows would stay in memory until backward: recompute them there.
    if not torch.is_grad_enabled():
        return head.logits_of(hidden, ids)
    return checkpoint(head.logits_of, hidden, ids, use_reentrant=False)  # type: ignore[return-value]
