"""Exact KL divergence of two policies from their hidden states, in chunks of tokens."""

from typing import Literal

import torch
from torch import Tensor

from trustclip.divergences import categorical_kl

Order = Literal["old_new", "new_old"]

#: Logits that one chunk may hold per policy: 64 MiB of float32.
_CHUNK_LOGITS = 1 << 24


@torch.no_grad()
def exact_kl(
    hidden_new: Tensor,
    hidden_old: Tensor,
    weight: Tensor,
    weight_old: Tensor | None = None,
    order: Order = "old_new",
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    r"""KL divergence between the new and the old policy over the whole vocabulary.

    With $z = W h / T$ the logits, ``"old_new"`` is $\sum_v \pi_{old}(v)\log\frac{\pi_{old}(v)}
    {\pi_\theta(v)}$ and ``"new_old"`` the reverse. Hidden states are all that is kept of the old
    policy: [N, H] instead of [N, V] numbers.

    Args:
      hidden_new: last hidden states $h$ of the current policy. Shape [N, H].
      hidden_old: those of the old policy. Shape [N, H].
      weight: $W$ of the current policy. Shape [V, H].
      weight_old: $W$ of the old policy; None when the head is frozen (LoRA) and both share it.
      order: ``"old_new"`` for KL(old || new), ``"new_old"`` for KL(new || old).
      bias: bias of the head, shared. Shape [V].
      temperature: $T$, that of sampling and training.

    Returns:
      Nats, at least float32, without gradient. Shape [N].

    Raises:
      ValueError: unknown order.

    Example:
      >>> eye = torch.eye(2, dtype=torch.float64)
      >>> new, old = torch.tensor([[0.4, 0.6], [0.5, 0.5]], dtype=torch.float64).log().split(1)
      >>> round(exact_kl(new, old, eye).item(), 12)
      0.02041099726
    """
    if order not in ("old_new", "new_old"):
        raise ValueError(f"`order` must be 'old_new' or 'new_old', got {order!r}.")
    weight_old = weight if weight_old is None else weight_old
    rows = max(1, _CHUNK_LOGITS // weight.shape[0])
    parts = []
    for new, old in zip(hidden_new.split(rows), hidden_old.split(rows), strict=True):
        logp_new = _logits(new, weight, bias).div_(temperature).log_softmax(dim=-1)
        logp_old = _logits(old, weight_old, bias).div_(temperature).log_softmax(dim=-1)
        pair = (logp_old, logp_new) if order == "old_new" else (logp_new, logp_old)
        parts.append(categorical_kl(*pair))
    return torch.cat(parts) if parts else hidden_new.new_zeros(0)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits in float32 at least: bfloat16 ones are too coarse for a threshold of 0.07 nats."""
    if weight.dtype in (torch.float32, torch.float64):
        logits = hidden.to(weight.dtype) @ weight.T
    elif weight.is_cuda:
        logits = torch.mm(hidden.to(weight.dtype), weight.T, out_dtype=torch.float32)
    else:
        logits = hidden.float() @ weight.float().T
    return logits if bias is None else logits + bias
