"""Gradient of a trained head's weight from the pass that computes the logits, for coefficients that
are known by then."""

from collections.abc import Callable

import torch
from torch import Tensor

from trustclip.head.dispatch import kernel_for
from trustclip.head.product import Chunk, Head, add_product
from trustclip.head.softmax import Running, scale_rows

#: What a caller foresees: from the indices of some rows, their log-probabilities, and their
#: entropies if computed, the gradient of its loss with respect to each log-probability.
Foresee = Callable[[Tensor, Tensor, Tensor | None], Tensor]

#: Gap in nats between two maxima beyond which the smaller one counts as this far below: e^-40 times
#: anything is no digit of the sum, and stays a normal number of float32.
_FAR = 40.0
#: How far, relative to itself, a coefficient that arrives may be from the one that was foreseen.
_WITHIN = 1e-5


class Foreseen:
    r"""Gradients $\sum_i g_i \nabla\log\pi_i(y_i)$ of weight and bias, made block by block.

    With $z = (W h + b)/T$ that of row $v$ of the weight is $\sum_i \frac{g_i}T(1_{v = y_i} -
    \pi_{iv}) h_i$. The weights $e^{z - m}$ of a block of tokens are kept over the whole vocabulary;
    after its last tile its log-probabilities are complete, the coefficients $g$ follow from them,
    and one product with the rows $g_i h_i$ gives the gradient.

    Args:
      ids: $y$. Shape [N].
      foresee: gives the coefficients, from indices below N.
      biased: whether the gradient of the bias is requested.
      chunk: memory that holds the weights of a block.
    """

    def __init__(
        self, head: Head, ids: Tensor, foresee: Foresee, biased: bool, chunk: Chunk
    ) -> None:
        self._head, self._ids, self._foresee, self._chunk = head, ids, foresee, chunk
        weight = head.weight
        self.coefficients = weight.new_zeros(len(ids), dtype=head.dtype)
        self.weight = weight.new_zeros(weight.shape, dtype=head.dtype)
        self.bias = weight.new_zeros(len(weight), dtype=head.dtype) if biased else None
        rows = max((block.stop - block.start for block in head.chunks(len(ids))), default=0)
        self._scaled = weight.new_empty(rows, weight.shape[1], dtype=head.compute_dtype)

    def add(self, block: slice, operand: Tensor, running: Running, gap: Tensor) -> None:
        """Add a block of rows, whose weights are kept and statistics complete.

        ``gap`` [tiles, rows]: how far the largest logit as of each tile was below the last.
        """
        rows = torch.arange(block.start, block.stop, device=operand.device)
        self.coefficients[block] = self._foresee(rows, running.logp, running.entropy)
        gap = gap.clamp(max=_FAR)
        self._subtract_own(self._ids[block], running, gap)
        # From a kept weight to its gradient: -g e^-gap / sum. In place: `gap` is not used again.
        factors = gap.neg_().exp_() * (-self.coefficients[block] / running.sum)  # [tiles, rows]
        self._accumulate(operand, factors.div_(self._head.temperature))

    def _subtract_own(self, ids: Tensor, running: Running, gap: Tensor) -> None:
        """Subtract 1 from each row's probability of its own token, in the scale of its weight.

        The difference is taken before it is rounded: most tokens are nearly sure.
        """
        rows = len(ids)
        width = next(self._head.columns(rows)).stop
        tile = ids // width  # [rows]
        start = tile * width
        stop = (start + width).clamp(max=self._head.vocabulary)
        row = torch.arange(rows, device=ids.device)
        assert running.chosen is not None
        rest = running.sum - (running.chosen - running.max).exp()  # [rows]
        place = rows * start + row * (stop - start) + (ids - start)  # in the memory. [rows]
        self._chunk.put(place, -rest * gap[tile, row].exp())

    def _accumulate(self, operand: Tensor, factors: Tensor) -> None:
        scaled, scale = self._scaled[: len(operand)], kernel_for(scale_rows, operand)
        before = torch.full_like(factors[0], torch.nan)  # equal to no factor
        for factor, columns in zip(factors, self._head.columns(len(operand)), strict=True):
            weights = self._chunk.of(len(operand), columns)  # [rows, columns]
            scale(operand, factor, before, scaled)  # [rows, H]
            before = factor
            add_product(self.weight[columns], weights.T, scaled)
            if self.bias is not None:
                add_product(self.bias[columns, None], weights.T, factor[:, None].to(weights.dtype))

    def scale(self, arrived: Tensor) -> float | None:
        """The factor from all foreseen coefficients to those that arrived; None if there is none.

        Waits for the device once.
        """
        foreseen, arrived = self.coefficients.double(), arrived.double()
        scale = (foreseen @ arrived) / (foreseen @ foreseen).clamp(min=torch.finfo().tiny)
        expected = scale * foreseen
        fits = ((arrived - expected).abs() <= _WITHIN * expected.abs()).all()
        rounded = scale.to(self.coefficients.dtype).double()
        number, proportional = torch.stack([rounded, fits.double()]).tolist()
        return number if proportional else None

    def times(self, scale: float) -> tuple[Tensor, Tensor | None]:
        """The gradients of weight and bias times a number, in their own memory."""
        if scale != 1:  # usually it is 1, and the weight's gradient is as large as the weight
            self.weight.mul_(scale)
            if self.bias is not None:
                self.bias.mul_(scale)
        return self.weight, self.bias
