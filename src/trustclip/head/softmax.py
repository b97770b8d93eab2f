r"""Softmax statistics from logits that arrive tile by tile, and the gradient of a tile.

Each function has a Triton kernel in `trustclip.head.kernels` that reads and writes a tile once;
`trustclip.head.dispatch` chooses. Here are the plain ones: the definition, and the fast path of a
CPU, where a block of rows small enough for its cache goes through all steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

#: Logits of a block of rows that stay in a core's cache from one step to the next: 512 KiB.
_BLOCK = 1 << 17


@dataclass(frozen=True)
class Running:
    r"""Online softmax (Milakov and Gimelshein, 2018) with a first moment, one entry per row.

    Args:
      max: largest logit so far, $m$. Shape [rows], as the others.
      sum: $\sum_v e^{z_v - m}$.
      first_moment: $\sum_v e^{z_v - m}(z_v - m)$, or None where no entropy is wanted.
    """

    max: Tensor
    sum: Tensor
    first_moment: Tensor | None

    @classmethod
    def start(cls, memory: Tensor, entropy: bool) -> "Running":
        """Statistics of no logits; ``memory`` becomes the max. Shape [rows]."""
        # Finite, so that the first tile does not meet infinity minus infinity.
        memory.fill_(torch.finfo(memory.dtype).min / 4)
        return cls(memory, torch.zeros_like(memory), torch.zeros_like(memory) if entropy else None)

    @property
    def log_partition(self) -> Tensor:
        r"""$\log\sum_v e^{z_v}$, in float64: differences of it keep the digits of small ones."""
        return self.max.double() + self.sum.double().log()

    @property
    def entropy(self) -> Tensor | None:
        r"""Entropy of the softmax, nats: $\log s - \sum_v e^{z_v-m}(z_v-m)/s$, no term negative."""
        return None if self.first_moment is None else self.sum.log() - self.first_moment / self.sum

    def at(self, rows: slice) -> "Running":
        """A view of selected rows."""
        first_moment = None if self.first_moment is None else self.first_moment[rows]
        return Running(self.max[rows], self.sum[rows], first_moment)


def fold(logits: Tensor, running: Running, weights: Tensor, shrink: Tensor) -> None:
    r"""Add a tile of logits to the running statistics.

    Args:
      logits: $z$. Shape [rows, columns].
      running: statistics, updated in place.
      weights: receives $e^{z - m}$ with the new $m$; may be ``logits``. Shape [rows, columns].
      shrink: receives $e^{m_{before} - m}$, by which earlier sums of weights shrink. Shape [rows].
    """
    before = running.max.clone()  # [rows]
    tile_sum, tile_moment = torch.empty_like(before), torch.empty_like(before)
    size = _rows(logits)
    memory = torch.empty_like(logits[:size])
    parts = (logits, weights, before, running.max, tile_sum, tile_moment)
    for z, e, last, top, mass, first in zip(*(x.split(size) for x in parts), strict=True):
        torch.maximum(last, z.amax(dim=1), out=top)  # [size]
        below = torch.sub(z, top[:, None], out=memory[: len(z)])  # [size, columns]
        torch.exp(below, out=e)
        torch.sum(e, dim=1, dtype=z.dtype, out=mass)  # [size], in the precision of the logits
        if running.first_moment is not None:
            torch.sum(below.mul_(e), dim=1, out=first)
    gap = before.sub_(running.max)  # [rows], old max minus new: never positive
    torch.exp(gap, out=shrink)
    if running.first_moment is not None:
        # sum of e^{z-m'}(z-m') from that about the former max: e^{m-m'} (moment + (m-m') sum).
        running.first_moment.addcmul_(running.sum, gap).mul_(shrink).add_(tile_moment)
    running.sum.mul_(shrink).add_(tile_sum)


def fold_gradient(
    logits: Tensor,
    log_partition: Tensor,
    entropy: Tensor | None,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
) -> None:
    r"""Turn a tile of logits, in place, into a gradient with respect to them.

    Of $\sum_i g_i \log\pi_i(y_i) + h_i H_i$ it is $-g\pi_v - h\pi_v(\log\pi_v + H)$, plus $g$ at
    $v = y$, which is left to the caller.

    Args:
      logits: $z$, then the gradient. Shape [rows, columns].
      log_partition: $\log\sum_v e^{z_v}$. Shape [rows].
      entropy: $H$; None where no ``grad_entropy`` asks for it. Shape [rows].
      grad_logp: $g$. Shape [rows].
      grad_entropy: $h$, or None for 0. Shape [rows].
    """
    size = _rows(logits)
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        logp = logits[rows].sub_(log_partition[rows, None])  # [size, columns]
        g = grad_logp[rows, None]  # [size, 1]
        if grad_entropy is None or entropy is None:
            logp.exp_().mul_(-g)
        else:
            p = logp.exp()  # [size, columns]
            logp.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(g).mul_(p).neg_()


def _rows(logits: Tensor) -> int:
    """Number of rows of a tile that go through all steps together."""
    return max(1, len(logits) if logits.is_cuda else _BLOCK // logits.shape[1])
