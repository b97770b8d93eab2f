"""Exact KL divergence of two policies that share a head, from the statistics of their scores."""

from typing import Any, Protocol

import torch
from torch import Tensor

from trustclip.head.exact import Order, check_order


class Partition(Protocol):
    """Statistics of a softmax: its log-partition and, if computed, its mean; see `Scores`."""

    @property
    def log_partition(self) -> Any: ...

    @property
    def mean(self) -> Any: ...


#: Smallest divergence, nats, that `bregman_kl` tells from another of its size to a few per cent, by
#: the dtype of the factors of the head's products.
RESOLVES = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 1e-3, torch.float16: 1e-3}


@torch.no_grad()
def bregman_kl(
    hidden_new: Tensor,
    new: Partition,
    hidden_old: Tensor,
    old: Partition,
    order: Order = "old_new",
    *,
    temperature: float = 1.0,
) -> Tensor:
    r"""KL divergence of two policies that share a frozen head, as a Bregman divergence: no product.

    A softmax over $z = (W h + b)/T$ is an exponential family in $h$ with log-partition $A(h)$ and
    $\nabla A(h) = \bar W(h)/T$, $\bar W = \sum_v \pi_v W_v$. Hence

    $\mathrm{KL}(a \,\|\, b) = A(h_b) - A(h_a) - \bar W(h_a)\cdot(h_b - h_a)/T$.

    The order ``"new_old"`` needs $\bar W$ of the new policy, which the gradient of a frozen head is
    computed from, so it costs nothing. ``"old_new"`` needs that of the old policy: one product more
    when the old policy is scored, none in any update after it.

    The difference of two log-partitions carries the rounding of the logits, whatever the
    divergence: in float32 up to 4e-6 nats at logits up to 15, 3e-5 at logits up to 50. It decides
    thresholds from 1e-3 nats on. Relative to the divergence the error is 1e-5 at 0.04 nats, 1e-3 at
    4e-4 and 10 % at 4e-6; below 1e-6 it is noise, of which half reads 0, since the rest of it would
    be negative, so that a mean is too large by half the noise. `exact_kl` has no such floor. With
    bfloat16 factors on a GPU each weight of $\bar W$ is good to three digits, and they add up to 1:
    the error is at most 2 % at 3e-3 nats, 7 % at 3e-4 and 20 % at 3e-5, also where all logits have
    shifted together. `RESOLVES` has what follows for thresholds; the TRL engine takes `exact_kl`
    below it.

    Args:
      hidden_new: last hidden states of the current policy. Shape [N, H].
      new: `score` of them; with ``mean=True`` for ``"new_old"``.
      hidden_old: those of the old policy. Shape [N, H].
      old: `score` of them with the same head; with ``mean=True`` for ``"old_new"``.
      order: ``"old_new"`` for KL(old || new), ``"new_old"`` for KL(new || old).
      temperature: $T$, that of both scores.

    Returns:
      Nats, float32 at least, not below 0; 0 where both scores skipped a row. Shape [N].

    Raises:
      ValueError: unknown order, or a score without the mean it needs.

    Example:
      >>> from trustclip.head import score
      >>> eye, ids = torch.eye(2, dtype=torch.float64), torch.tensor([0])
      >>> new, old = torch.tensor([[0.4, 0.6], [0.5, 0.5]], dtype=torch.float64).log().split(1)
      >>> scores = [score(hidden, eye, ids, mean=True) for hidden in (new, old)]
      >>> round(bregman_kl(new, scores[0], old, scores[1]).item(), 12)
      0.02041099726
    """
    check_order(order)
    (h_a, a), (h_b, b) = (hidden_new, new), (hidden_old, old)
    if order == "old_new":
        (h_a, a), (h_b, b) = (h_b, b), (h_a, a)
    if a.mean is None:
        raise ValueError(
            f"order {order!r} needs the mean of the {order[:3]} policy: score(..., mean=True)."
        )
    # [N], in float64: the terms nearly cancel at small divergences.
    slope = a.mean.double().mul_(h_b.double() - h_a.double()).sum(dim=1).div_(temperature)
    return (b.log_partition - a.log_partition - slope).clamp_(min=0).to(a.mean.dtype)
