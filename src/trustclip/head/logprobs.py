"""Differentiable log-probabilities and entropy from hidden states, without full logits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trustclip.head.product import Head, Tile, add_product, as_head
from trustclip.head.softmax import Running, fold, fold_gradient, scale_rows


class Scores(NamedTuple):
    r"""Statistics of each token from one pass over the head's tiles.

    Args:
      logp: log-probability of the token, nats; 0 where it was skipped. Shape [N].
      entropy: of the distribution it was drawn from, nats; None if not requested. Shape [N].
      log_partition: $A(h) = \log\sum_v e^{z_v}$, float64, detached. Shape [N].
      mean: $\sum_v \pi_v W_v$, the expected row of the weight, detached; None if not computed.
        Shape [N, H].
      collision: $\sum_v \pi_v^2$, the probability that two draws agree, detached; None if not
        computed. Shape [N].
    """

    logp: Tensor
    entropy: Tensor | None
    log_partition: Tensor
    mean: Tensor | None
    collision: Tensor | None


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor | Head,
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
      there before its coefficient is known; backward multiplies by the coefficient. With capped
      logits, 1 forward and 2 backward.
    - trained head: 1 forward; 3 backward, which recomputes the tiles, only for rows whose
      coefficient is not zero.

    A gradient of the entropy recomputes the tiles, too.

    Args:
      hidden: $h$. Shape [N, H].
      weight: $W$, or a `Head`, which has a bias, a temperature and a cap of its own. Shape [V, H].
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
    weight: Tensor | Head,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    entropy: bool = True,
    mean: bool = False,
) -> Scores:
    """`selected_logprobs`, and from the same pass the statistics that `bregman_kl` needs.

    Arguments as there; with ``mean`` also `Scores.mean` where no gradient needs it, at one product.

    Returns:
      `Scores`; rows skipped by a negative id are 0.
    """
    return scored(as_head(weight, bias, temperature), hidden, ids, Plan(entropy, mean))


#: Log-probability below which a bias of -inf, in the tiles -1e30, is the only cause.
_IMPOSSIBLE = -1e25


@dataclass(frozen=True)
class Plan:
    """What a pass over the head's tiles computes in addition to log-probabilities."""

    entropy: bool = True
    mean: bool = False  # `Scores.mean` also where no gradient needs it, at one product
    collision: bool = False  # `Scores.collision`, at no product


def scored(head: Head, hidden: Tensor, ids: Tensor, plan: Plan) -> Scores:
    """`score` by a head, with everything that a plan can request.

    Raises:
      ValueError: ids that do not fit, or a mean of capped logits.
    """
    if plan.mean and head.cap is not None:
        raise ValueError("capped logits are not linear in `hidden`: `mean` has no use for them.")
    valid = _valid_rows(ids, hidden, head)
    some = len(valid) < len(ids)
    rows, chosen = (hidden[valid], ids[valid]) if some else (hidden, ids)
    outputs: tuple[Any, ...] = _Score.apply(rows, head.weight, head.bias, chosen, head, plan)
    if some:
        outputs = tuple(
            None if x is None else x.new_zeros(len(ids), *x.shape[1:]).index_copy(0, valid, x)
            for x in outputs
        )
    return Scores(*outputs)


def _valid_rows(ids: Tensor, hidden: Tensor, head: Head) -> Tensor:
    """Indices of the rows with a token; ids that do not fit are refused. Waits for the GPU once."""
    if ids.dtype != torch.int64 or ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"`ids` must be int64 of shape [{hidden.shape[0]}], got {ids.dtype} of shape "
            f"{tuple(ids.shape)}."
        )
    if not len(ids):
        return ids
    skipped = ids < 0
    largest, without = torch.stack([ids.max(), skipped.sum()]).tolist()
    if largest >= head.vocabulary:
        raise ValueError(
            f"`ids` must be below the vocabulary's size, {head.vocabulary}; got {largest}."
        )
    # Their number has been read already: `nonzero` would wait for the GPU a second time.
    return skipped.to(torch.uint8).argsort(stable=True)[: len(ids) - without]


class _Score(torch.autograd.Function):
    """Scores of each row, and the gradients that the same pass can compute.

    The direction of a log-probability, $(W_y - \\bar W)/T$, is computed where the head is frozen:
    backward then only multiplies.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        head: Head,
        plan: Plan,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]
        directed = of_hidden and not (of_weight or of_bias) and head.cap is None
        with torch.autocast(hidden.device.type, enabled=False), head.products():
            planned = replace(plan, mean=plan.mean or directed)
            running, mean, collision = _pass(head, hidden, ids, planned)
            direction = None
            if directed and mean is not None:
                # d logp / d hidden, [rows, H]: the backward pass then needs no product.
                direction = (head.weight[ids] - mean).div_(head.temperature)
        ctx.head = head
        logp = running.logp
        if bias is not None and head.cap is None:
            logp = logp.masked_fill(logp < _IMPOSSIBLE, -torch.inf)
        mean = mean if plan.mean else None
        scores = Scores(logp, running.entropy, running.log_partition, mean, collision)
        # With weight and bias, of which autograd then notices a change before the backward pass.
        ctx.save_for_backward(
            *(hidden, ids, scores.log_partition, scores.entropy, direction, weight, bias)
        )
        ctx.mark_non_differentiable(*(x for x in scores[2:] if x is not None))
        return tuple(scores)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad_logp, grad_entropy = grads[:2]
        hidden, ids, log_partition, entropy, direction = ctx.saved_tensors[:5]
        if grad_logp is None:
            grad_logp = log_partition.new_zeros(len(ids), dtype=ctx.head.dtype)
        needs = list(ctx.needs_input_grad[:3])
        grad_inputs: list[Tensor | None] = [None, None, None]
        if grad_entropy is None and direction is not None:
            grad_inputs[0], needs[0] = (direction * grad_logp[:, None]).to(hidden.dtype), False
        if any(needs):
            rows = _Rows(hidden, ids, log_partition, entropy, grad_logp, grad_entropy)
            with torch.autocast(hidden.device.type, enabled=False), ctx.head.products():
                rest = _gradients(ctx.head, rows, needs)
            grad_inputs = [a if b is None else b for a, b in zip(grad_inputs, rest, strict=True)]
        return *grad_inputs, *(None,) * 3


def _pass(
    head: Head, hidden: Tensor, ids: Tensor, plan: Plan
) -> tuple[Running, Tensor | None, Tensor | None]:
    """One pass over the head's tiles.

    Returns:
      Softmax statistics; expected rows of the weight [N, H], if planned; collision probabilities
      [N], if planned.
    """
    tokens, stored = len(hidden), head.compute_dtype != head.dtype
    start = Running.start(hidden.new_empty(tokens, dtype=head.dtype), plan.entropy)
    running = start.of_tokens((stored or head.rounds) and plan.mean)
    squares = torch.zeros_like(start.max) if plan.collision else None  # of e^{z - max}. [N]
    means = hidden.new_zeros(hidden.shape, dtype=head.dtype) if plan.mean else None  # [N, H]
    blocks = list(head.blocks(tokens))
    weights = Tile(head, blocks, head.compute_dtype)
    logits = Tile(head, blocks, head.dtype) if stored else weights
    shrinks = torch.empty_like(running.max)
    for block in blocks:
        operand = head.operand(hidden[block])  # [rows, H]
        part, shrink = running.at(block), shrinks[block]
        mean = None if means is None else means[block]
        for columns in head.columns(len(operand)):
            factor = head.factor(columns)  # [columns, H]
            # [rows, columns]
            z = head.logits(operand, factor, columns, logits.of(len(operand), columns))
            e = weights.of(len(operand), columns)  # exp(z - max) after `fold`. [rows, columns]
            fold(z, part, e, shrink, ids[block] - columns.start)
            if squares is not None:
                norm = torch.linalg.vector_norm(e, dim=1, dtype=head.dtype)  # [rows]
                squares[block].mul_(shrink.square()).add_(norm.square_())
            if mean is not None:
                # Before this tile is added: earlier sums shrink when the maximum grows.
                scale_rows(mean, shrink)
                add_product(mean, e, factor)
    if means is not None:
        means.div_(running.mass[:, None])
    if squares is not None:
        squares.div_(running.sum.square())
    return running, means, squares


@dataclass(frozen=True)
class _Rows:
    """Tokens with the coefficients of their log-probability and entropy in the loss."""

    hidden: Tensor  # [N, H]
    ids: Tensor  # [N]
    log_partition: Tensor  # [N]
    entropy: Tensor | None  # None if it was not requested. [N]
    grad_logp: Tensor  # [N]
    grad_entropy: Tensor | None  # None for zeros. [N]

    def at(self, rows: Tensor | slice) -> "_Rows":
        """A selection of the rows."""
        chosen = {k: None if x is None else x[rows] for k, x in vars(self).items()}
        return replace(self, **chosen)

    def over(self, temperature: float) -> "_Rows":
        r"""Coefficients for gradients with respect to $T z$ instead of $z$."""
        entropy = None if self.grad_entropy is None else self.grad_entropy / temperature
        return replace(self, grad_logp=self.grad_logp / temperature, grad_entropy=entropy)

    def rounded(self, dtype: torch.dtype) -> "_Rows":
        """The rows with log-partitions of the precision of logits.

        Rounding a log-partition of 20 to float32 shifts every log-probability of the row by up to
        1e-6; the entropy absorbs the shift, and the coefficients its effect on probabilities. At
        the row's own token the coefficient multiplies no probability and must not change.
        """
        log_partition = self.log_partition.to(dtype)
        slip = (log_partition - self.log_partition).to(dtype)
        return replace(
            self,
            log_partition=log_partition,
            entropy=None if self.entropy is None else self.entropy + slip,
            grad_logp=self.grad_logp * slip.exp(),
            grad_entropy=None if self.grad_entropy is None else self.grad_entropy * slip.exp(),
        )


def _gradients(head: Head, rows: _Rows, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of hidden states, weight and bias; None for those not requested in ``needs``.

    Rows with zero coefficients cost nothing.
    """
    moved = rows.grad_logp != 0  # [N]
    if rows.grad_entropy is not None:
        moved = moved | (rows.grad_entropy != 0)
    active = moved.nonzero().squeeze(1)
    moving = rows.at(active).over(head.temperature)
    hidden, weight, bias = _sums(head, moving, needs)  # [active, H], [V, H], [V]
    if hidden is not None:
        hidden = torch.zeros_like(rows.hidden).index_copy_(0, active, hidden.to(rows.hidden.dtype))
    return (
        hidden,
        None if weight is None else weight.to(head.weight.dtype),
        None if bias is None or head.bias is None else bias.to(head.bias.dtype),
    )


def _sums(head: Head, rows: _Rows, needs: Sequence[bool]) -> list[Tensor | None]:
    tokens, width = rows.hidden.shape
    shapes = ((tokens, width), (head.vocabulary, width), (head.vocabulary,))
    blocks = list(head.blocks(tokens))
    # The weight's is as large as the head: the first block writes it, and nothing fills it before.
    start = (torch.zeros, torch.empty if blocks else torch.zeros, torch.zeros)
    hidden, weight, bias = sums = [
        of(shape, dtype=head.dtype, device=rows.hidden.device) if need else None
        for of, shape, need in zip(start, shapes, needs, strict=True)
    ]
    memory = Tile(head, blocks, head.dtype)
    for block in blocks:
        exact = rows.at(block)
        part = exact.rounded(head.dtype)
        operand = head.operand(part.hidden)  # [rows, H]
        for columns in head.columns(len(operand)):
            factor = head.factor(columns)  # [columns, H]
            # [rows, columns]: the logits, then in place the gradient with respect to them
            tile = head.logits(operand, factor, columns, memory.of(len(operand), columns))
            slope = head.slope(tile)
            fold_gradient(
                tile, part.log_partition, part.entropy, part.grad_logp, part.grad_entropy,
                part.ids - columns.start, exact.grad_logp,
            )  # fmt: skip
            if slope is not None:
                tile.mul_(slope)  # taken from the logits, before they became a gradient
            tile = tile.to(head.compute_dtype)
            if hidden is not None:
                add_product(hidden[block], tile, factor)
            if weight is not None:
                add_product(weight[columns], tile.T, operand, beta=float(block.start > 0))
            if bias is not None:
                bias[columns] += tile.sum(dim=0, dtype=head.dtype)
    return sums
