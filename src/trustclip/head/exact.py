"""Exact KL divergence of two policies, from their hidden states or from their scores."""

from dataclasses import replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from trustclip.constraints.divergences import k3
from trustclip.head.product import Head, as_head
from trustclip.head.softmax import exp
from trustclip.support.names import unknown

Order = Literal["old_new", "new_old"]
ORDERS: tuple[Order, ...] = get_args(Order)

#: Logits that a chunk of tokens holds per policy: 64 MiB of float32 on a CPU, 128 MiB on a GPU,
#: whose products want more rows.
CHUNK_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 25}
#: Logits that go through all steps together: 256 KiB, which stay in a core's cache; 32 MiB.
_BLOCK = {"cpu": 1 << 16, "cuda": 1 << 23}
#: Gap in nats beyond which a term is b, to every digit of float64: b - a + a d at a < e^-40 b.
_FAR = 40.0
#: Smallest divergence, nats, that `bregman_kl` tells from another of its size to a few per cent, by
#: the dtype of the factors of the head's products.
RESOLVES = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 1e-3, torch.float16: 1e-3}


@torch.no_grad()
def exact_kl(
    hidden_new: Tensor,
    hidden_old: Tensor,
    weight: Tensor | Head,
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

    KL(a || b) is summed as the mean of `k3` under a, $\sum_v a_v(e^{-d_v} - 1 + d_v)$ with
    $d_v = \log a_v - \log b_v$: no term is negative and nothing cancels, so it is never below 0.
    What is left is the rounding of the logits: in float32, at logits up to 15, 4e-6 nats at a
    divergence of 0.6, 6e-8 at 4e-4 and 7e-10 (2 %) at 4e-8; at logits up to 50, 3e-5, 9e-7 and
    2e-8. Costs 2 products. Where both policies share the head, `bregman_kl` needs none, with
    an error that does not shrink with the divergence.

    Args:
      hidden_new: last hidden states $h$ of the current policy. Shape [N, H].
      hidden_old: those of the old policy. Shape [N, H].
      weight: $W$ of the current policy, or its `Head`. Shape [V, H].
      weight_old: $W$ of the old policy; None when the head is frozen (LoRA) and both share it.
      order: ``"old_new"`` for KL(old || new), ``"new_old"`` for KL(new || old).
      bias: bias of the head, shared; -inf for tokens that neither policy can sample. Shape [V].
      temperature: $T$, that of sampling and training.

    Returns:
      Nats, at least float32, without gradient. Shape [N].

    Raises:
      ValueError: unknown order, hidden states that do not match.

    Example:
      >>> eye = torch.eye(2, dtype=torch.float64)
      >>> new, old = torch.tensor([[0.4, 0.6], [0.5, 0.5]], dtype=torch.float64).log().split(1)
      >>> round(exact_kl(new, old, eye).item(), 12)
      0.02041099726
    """
    _check_order(order)
    if hidden_new.shape != hidden_old.shape:
        raise ValueError(
            "`hidden_new` and `hidden_old` must be of one shape, got "
            f"{tuple(hidden_new.shape)} and {tuple(hidden_old.shape)}."
        )
    new = as_head(weight, bias, temperature)
    old = new if weight_old is None else replace(new, weight=weight_old)
    kl = hidden_new.new_zeros(len(hidden_new), dtype=new.dtype)  # [N]
    rows = max(1, CHUNK_LOGITS[kl.device.type] // new.vocabulary)
    memory = [kl.new_empty(min(rows, len(kl)), new.vocabulary) for _ in range(2)]  # [rows, V]
    for start in range(0, len(kl), rows):
        chunk = slice(start, start + rows)
        z_new = _logits(new, hidden_new[chunk], memory[0])
        z_old = _logits(old, hidden_old[chunk], memory[1])
        a, b = (z_old, z_new) if order == "old_new" else (z_new, z_old)
        kl[chunk] = _kl(a, b)
    return kl


class Partition(Protocol):
    """Statistics of a softmax: its log-partition and, if computed, its mean; see `Scores`."""

    @property
    def log_partition(self) -> Any: ...

    @property
    def mean(self) -> Any: ...


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
    _check_order(order)
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


def _check_order(order: str) -> None:
    """Raise a ValueError unless ``order`` is one of `ORDERS`."""
    if order not in ORDERS:
        raise ValueError(unknown("order", order, ORDERS))


def _logits(head: Head, hidden: Tensor, memory: Tensor) -> Tensor:
    """Full rows of logits, written to ``memory``. Shape [rows, V]."""
    logits, operand = memory[: len(hidden)], head.operand(hidden)
    for columns in head.columns(len(operand)):
        head.logits(operand, head.factor(columns), columns, logits[:, columns])
    return logits


def _kl(a: Tensor, b: Tensor) -> Tensor:
    r"""KL(a || b) of two softmaxes, given their logits: $\sum_v a_v\,$`k3`$(\log b_v/a_v)$."""
    width = max(1, _BLOCK[a.device.type] // len(a))
    total_a, total_b = _log_partition(a, width), _log_partition(b, width)  # [rows, 1]
    kl = a.new_zeros(len(a))  # [rows]
    for z_a, z_b in zip(a.split(width, dim=1), b.split(width, dim=1), strict=True):
        logp_b = z_b - total_b  # [rows, width]
        gap = (z_a - total_a).sub_(logp_b).clamp_(min=-_FAR)
        # exp(logp_b + gap) is a_v; where the clamp acts, the term becomes b_v, its limit.
        a_v = exp(logp_b.add_(gap), out=logp_b)  # [rows, width]
        kl += a_v.mul_(k3(gap.neg_())).sum(dim=1)
    return kl


def _log_partition(logits: Tensor, width: int) -> Tensor:
    """Log of the sum of exponentials of each row. Shape [rows, 1]."""
    top = logits.amax(dim=1, keepdim=True)  # [rows, 1]
    total = torch.zeros_like(top)
    for part in logits.split(width, dim=1):
        below = part - top  # [rows, width], never positive
        total += exp(below, out=below).sum(dim=1, keepdim=True)
    return total.log_().add_(top)
