"""Gradients of weighted sums of log-probabilities and entropies; logits are recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trustclip.head.dispatch import kernel_for
from trustclip.head.product import Head, Tile, add_product, columns_of
from trustclip.head.softmax import fold_gradient


@dataclass(frozen=True)
class Rows:
    """Tokens with the coefficients of their log-probability and entropy in the loss.

    Args:
      hidden: Shape [N, H].
      ids: Shape [N].
      log_partition: Shape [N].
      entropy: None if it was not requested. Shape [N].
      grad_logp: Shape [N].
      grad_entropy: None for zeros. Shape [N].
    """

    hidden: Tensor
    ids: Tensor
    log_partition: Tensor
    entropy: Tensor | None
    grad_logp: Tensor
    grad_entropy: Tensor | None

    def at(self, rows: Tensor | slice) -> "Rows":
        """A selection of the rows."""
        chosen = {k: None if x is None else x[rows] for k, x in vars(self).items()}
        return replace(self, **chosen)

    def over(self, temperature: float) -> "Rows":
        r"""Coefficients for gradients with respect to $T z$ instead of $z$."""
        entropy = None if self.grad_entropy is None else self.grad_entropy / temperature
        return replace(self, grad_logp=self.grad_logp / temperature, grad_entropy=entropy)

    def active(self) -> Tensor:
        """Indices of the rows with a nonzero coefficient."""
        moved = self.grad_logp != 0
        if self.grad_entropy is not None:
            moved = moved | (self.grad_entropy != 0)
        return moved.nonzero().squeeze(1)


def gradients(head: Head, rows: Rows, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of hidden states, weight and bias; None for those not requested in ``needs``.

    Rows with zero coefficients cost nothing.
    """
    active = rows.active()
    moving = rows.at(active).over(head.temperature)
    hidden, weight, bias = _sums(head, moving, needs)
    if hidden is not None:
        hidden = torch.zeros_like(rows.hidden).index_copy_(0, active, hidden.to(rows.hidden.dtype))
    return (
        hidden,
        None if weight is None else weight.to(head.weight.dtype),
        None if bias is None or head.bias is None else bias.to(head.bias.dtype),
    )


def _sums(head: Head, rows: Rows, needs: Sequence[bool]) -> list[Tensor | None]:
    tokens, width = rows.hidden.shape
    shapes = ((tokens, width), (head.vocabulary, width), (head.vocabulary,))
    hidden, weight, bias = sums = [
        rows.hidden.new_zeros(shape, dtype=head.dtype) if need else None
        for shape, need in zip(shapes, needs, strict=True)
    ]
    memory = Tile(head, tokens, head.dtype)
    for block in head.blocks(tokens):
        part = rows.at(block)
        operand = head.operand(part.hidden)  # [rows, H]
        for columns in head.columns(len(operand)):
            factor = head.factor(columns)  # [columns, H]
            tile = memory.of(len(operand), columns)  # [rows, columns]
            _tile_gradient(head.logits(operand, factor, columns, tile), part, columns)
            tile = tile.to(head.compute_dtype)
            if hidden is not None:
                add_product(hidden[block], tile, factor)
            if weight is not None:
                add_product(weight[columns], tile.T, operand)
            if bias is not None:
                bias[columns] += tile.sum(dim=0, dtype=head.dtype)
    return sums


def _tile_gradient(logits: Tensor, rows: Rows, columns: slice) -> None:
    """Replace a tile's logits, in place, by their gradient for the coefficients of ``rows``."""
    log_partition = rows.log_partition.to(logits.dtype)
    # Rounding a log-partition of 20 to float32 shifts every log-probability of the row by up to
    # 1e-6; the coefficients are scaled by what that does to the probabilities.
    slip = (log_partition - rows.log_partition).to(logits.dtype)
    factor = slip.exp()
    kernel_for(fold_gradient, logits)(
        logits,
        log_partition,
        None if rows.entropy is None else rows.entropy + slip,
        rows.grad_logp * factor,
        None if rows.grad_entropy is None else rows.grad_entropy * factor,
    )
    inside, column = columns_of(rows.ids, columns)
    chosen = logits.gather(1, column) + torch.where(inside, rows.grad_logp, 0)[:, None]  # [rows, 1]
    logits.scatter_(1, column, chosen)
