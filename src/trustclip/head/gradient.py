"""Gradients of weighted sums of log-probabilities and entropies; logits are recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trustclip.head.product import Head, Tile, add_product
from trustclip.head.softmax import fold_gradient


@dataclass(frozen=True)
class Rows:
    """Tokens with the coefficients of their log-probability and entropy in the loss."""

    hidden: Tensor  # [N, H]
    ids: Tensor  # [N]
    log_partition: Tensor  # [N]
    entropy: Tensor | None  # None if it was not requested. [N]
    grad_logp: Tensor  # [N]
    grad_entropy: Tensor | None  # None for zeros. [N]

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

    def rounded(self, dtype: torch.dtype) -> "Rows":
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


def gradients(head: Head, rows: Rows, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of hidden states, weight and bias; None for those not requested in ``needs``.

    Rows with zero coefficients cost nothing.
    """
    active = rows.active()
    moving = rows.at(active).over(head.temperature)
    hidden, weight, bias = _sums(head, moving, needs)  # [active, H], [V, H], [V]
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
