"""Differentiable log-probabilities and entropy from hidden states, without full logits."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trustclip.head.dispatch import kernel_for
from trustclip.head.gradient import Rows, gradients
from trustclip.head.product import Head, Tile, add_product, columns_of
from trustclip.head.softmax import Running, fold


class Scores(NamedTuple):
    r"""Statistics of each token from one pass over the head's tiles.

    Args:
      logp: log-probability of the token, nats; 0 where it was skipped. Shape [N].
      entropy: of the distribution it was drawn from, nats; None if not requested. Shape [N].
      log_partition: $A(h) = \log\sum_v e^{z_v}$, float64, detached. Shape [N].
      mean: $\sum_v \pi_v W_v$, the expected row of the weight, detached; None where no pass made
        it. Shape [N, H].
    """

    logp: Tensor
    entropy: Tensor | None
    log_partition: Tensor
    mean: Tensor | None


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    r"""Log-probabilities of chosen tokens and entropies, from last hidden states.

    $\log\pi(y) = z_y - \log\sum_v e^{z_v}$ with $z = (W h + b)/T$. The vocabulary passes in tiles,
    so memory does not grow with V, and every sum is float32 at least. Counting $2NHV$ operations a
    product:

    - frozen head (LoRA): 2 products, both forward. Next to the logits of a tile stands their share
      of $\sum_v\pi_v W_v$, so the gradient $(W_y - \sum_v\pi_v W_v)/T$ of every log-probability is
      there before its coefficient is known; backward multiplies by the coefficient.
    - trained head: 1 forward; 3 backward, which makes the tiles again, for the rows only whose
      coefficient is not zero. The gradient of $W$ needs the coefficients first, and a trainer knows
      them when all log-probabilities of a batch stand; a form that was given them would need 3 in
      all, and take three quarters of the time.

    A gradient that arrives at the entropy makes the tiles again too.

    Args:
      hidden: $h$. Shape [N, H].
      weight: $W$. Shape [V, H].
      ids: $y$, int64; a negative one (-100, say) skips its row: 0 everywhere, no work.
        Shape [N].
      bias: $b$. Shape [V].
      temperature: $T > 0$, that of sampling.
      entropy: also compute entropies.

    Returns:
      (logp, entropy) in nats, float32 at least. Both [N]; entropy is None if not requested.

    Raises:
      ValueError: shapes that do not fit, an id beyond the vocabulary, T not positive.

    Example:
      >>> hidden = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
      >>> logp, entropy = selected_logprobs(hidden, torch.eye(3).double(), torch.tensor([1]))
      >>> round(logp.item(), 12), round(entropy.item(), 12)
      (-1.203972804326, 1.029653014065)
    """
    scores = score(
        hidden, weight, ids, bias=bias, temperature=temperature, entropy=entropy, mean=False
    )
    return scores.logp, scores.entropy


def score(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    entropy: bool = True,
    mean: bool = False,
) -> Scores:
    """`selected_logprobs`, and from the same pass the statistics that `bregman_kl` needs.

    Args:
      hidden: as there; so are ``weight``, ``ids``, ``bias``, ``temperature``, ``entropy``.
      weight: as there.
      ids: as there.
      bias: as there.
      temperature: as there.
      entropy: as there.
      mean: make `Scores.mean` also where no gradient needs it, at one product.

    Returns:
      `Scores`; rows skipped by a negative id are 0.
    """
    head = Head(weight, bias, temperature)
    _check_ids(ids, hidden, head)
    trained = any(x is not None and x.requires_grad for x in (weight, bias))
    direct = torch.is_grad_enabled() and hidden.requires_grad and not trained
    kept = (ids >= 0).nonzero().squeeze(1)
    some = len(kept) < len(ids)
    rows, chosen = (hidden[kept], ids[kept]) if some else (hidden, ids)
    found: tuple[Any, ...] = _Score.apply(
        rows, weight, bias, chosen, head, _Plan(entropy, mean, direct)
    )
    if some:
        found = tuple(
            None if x is None else x.new_zeros(len(ids), *x.shape[1:]).index_copy(0, kept, x)
            for x in found
        )
    return Scores(*found)


def _check_ids(ids: Tensor, hidden: Tensor, head: Head) -> None:
    if ids.dtype != torch.int64 or ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"`ids` must be int64 of shape [{hidden.shape[0]}], got {ids.dtype} of shape "
            f"{tuple(ids.shape)}."
        )
    if len(ids) and int(ids.max()) >= head.vocabulary:
        raise ValueError(
            f"`ids` must be below the vocabulary's size, {head.vocabulary}; got {int(ids.max())}."
        )


class _Plan(NamedTuple):
    """What a forward pass computes: entropies, means, the gradients of log-probabilities."""

    entropy: bool
    mean: bool
    direct: bool


class _Score(torch.autograd.Function):
    """Scores of each row; with ``plan.direct`` also the gradients of its log-probability."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        head: Head,
        plan: _Plan,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.head = head
        with torch.autocast(hidden.device.type, enabled=False):
            logp, running, mean = _statistics(head, hidden, ids, plan)
            direction = None
            if plan.direct and mean is not None:
                # d logp / d hidden, [rows, H]: the backward pass then needs no product.
                direction = (weight[ids] - mean).div_(head.temperature)
        scores = Scores(logp, running.entropy, running.log_partition, mean if plan.mean else None)
        ctx.save_for_backward(
            hidden, weight, bias, ids, scores.log_partition, scores.entropy, direction
        )
        ctx.mark_non_differentiable(*(x for x in scores[2:] if x is not None))
        return tuple(scores)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad_logp, grad_entropy = grads[:2]
        hidden, _, _, ids, log_partition, entropy, direction = ctx.saved_tensors
        if grad_logp is None:
            grad_logp = log_partition.new_zeros(len(ids), dtype=ctx.head.dtype)
        if direction is not None and grad_entropy is None:
            return (direction * grad_logp[:, None]).to(hidden.dtype), *(None,) * 5
        rows = Rows(hidden, ids, log_partition, entropy, grad_logp, grad_entropy)
        with torch.autocast(hidden.device.type, enabled=False):
            return *gradients(ctx.head, rows, ctx.needs_input_grad[:3]), *(None,) * 3


def _statistics(
    head: Head, hidden: Tensor, ids: Tensor, plan: _Plan
) -> tuple[Tensor, Running, Tensor | None]:
    """Log-probabilities, softmax statistics and, if planned, expected rows of the weight."""
    tokens = len(hidden)
    running = Running.start(hidden.new_empty(tokens, dtype=head.dtype), plan.entropy)
    target, shrink = torch.zeros_like(running.max), torch.empty_like(running.max)
    wanted = plan.mean or plan.direct
    mean = hidden.new_zeros(hidden.shape, dtype=head.dtype) if wanted else None
    logits = Tile(head, tokens, head.dtype)
    weights = logits if head.compute_dtype == head.dtype else Tile(head, tokens, head.compute_dtype)
    take = kernel_for(fold, hidden)
    for block in head.blocks(tokens):
        operand = head.operand(hidden[block])  # [rows, H]
        for columns in head.columns(len(operand)):
            factor = head.factor(columns)  # [columns, H]
            # [rows, columns]
            z = head.logits(operand, factor, columns, logits.of(len(operand), columns))
            inside, column = columns_of(ids[block], columns)
            target[block] = torch.where(inside, z.gather(1, column).squeeze(1), target[block])
            e = weights.of(len(operand), columns)  # [rows, columns], exp(z - max) after `take`
            take(z, running.at(block), e, shrink[block])
            if mean is not None:
                add_product(mean[block].mul_(shrink[block, None]), e, factor)
    if mean is not None:
        mean.div_(running.sum[:, None])
    # The max is subtracted first: rounding the sum of max and log would cost digits.
    return (target - running.max) - running.sum.log(), running, mean
