r"""Softmax statistics from logits that arrive tile by tile, and the gradient of a tile.

A block of rows that is small enough for a CPU's cache goes through all steps before the next one.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Logits of a block of rows that stay in a core's cache from one step to the next: 512 KiB.
_BLOCK = 1 << 17
_LOG2_E = 1 / math.log(2)


@dataclass(frozen=True)
class Running:
    r"""Online softmax (Milakov and Gimelshein, 2018) with a first moment, one entry per row.

    Args:
      max: largest logit so far, $m$. Shape [rows], as the others.
      sum: $\sum_v e^{z_v - m}$.
      first_moment: $\sum_v e^{z_v - m}(z_v - m)$, or None where no entropy is requested.
      chosen: logit of the row's own token, or None where it has none; 0 before its tile.
      rounded_sum: the sum of the weights as they were stored, or None where they are not rounded.
    """

    max: Tensor
    sum: Tensor
    first_moment: Tensor | None
    chosen: Tensor | None = None
    rounded_sum: Tensor | None = None

    @classmethod
    def start(cls, memory: Tensor, entropy: bool) -> "Running":
        """Statistics of no logits; ``memory`` becomes the max. Shape [rows]."""
        # Finite, so that the first tile does not meet infinity minus infinity.
        memory.fill_(torch.finfo(memory.dtype).min / 4)
        return cls(memory, torch.zeros_like(memory), torch.zeros_like(memory) if entropy else None)

    def of_tokens(self, rounded: bool) -> "Running":
        """With the logit of each row's token, and if requested the sum of rounded weights."""
        zeros = torch.zeros_like(self.max)
        return replace(self, chosen=zeros, rounded_sum=zeros.clone() if rounded else None)

    @property
    def log_partition(self) -> Tensor:
        r"""$\log\sum_v e^{z_v}$, in float64: differences of it keep the digits of small ones."""
        return self.max.double() + self.sum.double().log()

    @property
    def entropy(self) -> Tensor | None:
        r"""Entropy of the softmax, nats: $\log s - \sum_v e^{z_v-m}(z_v-m)/s$, no term negative."""
        return None if self.first_moment is None else self.sum.log() - self.first_moment / self.sum

    @property
    def logp(self) -> Tensor:
        """Log-probability of each row's token."""
        assert self.chosen is not None
        # The max is subtracted first: a rounded sum of max and log would cost digits.
        return (self.chosen - self.max) - self.sum.log()

    @property
    def mass(self) -> Tensor:
        r"""What the stored weights add up to, so that their quotients by it add up to 1."""
        return self.sum if self.rounded_sum is None else self.rounded_sum

    def at(self, rows: slice) -> "Running":
        """A view of selected rows."""
        return Running(*(None if x is None else x[rows] for x in vars(self).values()))  # type: ignore[arg-type]


def fold(
    logits: Tensor, running: Running, weights: Tensor, shrink: Tensor, local: Tensor | None = None
) -> None:
    r"""Add a tile of logits to the running statistics.

    Args:
      logits: $z$. Shape [rows, columns].
      running: statistics, updated in place.
      weights: receives $e^{z - m}$ with the new $m$; may be ``logits``. Shape [rows, columns].
      shrink: receives $e^{m_{before} - m}$, by which earlier sums of weights shrink. Shape [rows].
      local: each row's token as a column of this tile, int64, out of its range where it lies in
        another; None where no row has one. Shape [rows].
    """
    if running.chosen is not None and local is not None:
        inside, column = _within(local, logits)
        z_own = logits.gather(1, column).squeeze(1)  # [rows]
        running.chosen.copy_(torch.where(inside, z_own, running.chosen))
    before = running.max.clone()  # [rows]
    tile_sum, tile_moment = torch.empty_like(before), torch.empty_like(before)
    size = _rows(logits)
    memory = torch.empty_like(logits[:size])
    parts = (logits, weights, before, running.max, tile_sum, tile_moment)
    for z, e, last, top, mass, first in zip(*(x.split(size) for x in parts), strict=True):
        torch.maximum(last, z.amax(dim=1), out=top)  # [size]
        below = torch.sub(z, top[:, None], out=memory[: len(z)])  # [size, columns]
        exact = exp(below, out=e if e.dtype == z.dtype else torch.empty_like(below))
        torch.sum(exact, dim=1, out=mass)  # [size]
        if running.first_moment is not None:
            torch.sum(below.mul_(exact), dim=1, out=first)
        # Rounded for a product; the sums are those of the exact weights.
        if exact is not e:
            e.copy_(exact)
        elif running.rounded_sum is not None:
            e.copy_(exact.bfloat16())
    gap = before.sub_(running.max)  # [rows], old max minus new: never positive
    torch.exp(gap, out=shrink)
    if running.first_moment is not None:
        # sum of e^{z-m'}(z-m') from that about the former max: e^{m-m'} (moment + (m-m') sum).
        running.first_moment.addcmul_(running.sum, gap).mul_(shrink).add_(tile_moment)
    running.sum.mul_(shrink).add_(tile_sum)
    if running.rounded_sum is not None:
        running.rounded_sum.mul_(shrink).add_(weights.sum(dim=1, dtype=tile_sum.dtype))


def exp(x: Tensor, out: Tensor) -> Tensor:
    """``x.exp()`` in ``out`` as a power of 2, right to |x| times the dtype's smallest step.

    On a CPU PyTorch's exponential takes three times as long, and a hundred times where the result
    underflows, as it does for most tokens of a policy that is sure.
    """
    return torch.mul(x, _LOG2_E, out=out).exp2_()


def scale_rows(x: Tensor, factor: Tensor) -> None:
    """Multiply each row by its factor, in place. Shapes [rows, width] and [rows]."""
    x.mul_(factor[:, None])


def fold_gradient(
    logits: Tensor,
    log_partition: Tensor,
    entropy: Tensor | None,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    local: Tensor,
    grad_own: Tensor,
) -> None:
    r"""Turn a tile of logits, in place, into a gradient with respect to them.

    Of $\sum_i g_i \log\pi_i(y_i) + h_i H_i$ it is $-g\pi_v - h\pi_v(\log\pi_v + H)$, plus
    $g$ at $v = y$.

    Args:
      logits: $z$, then the gradient. Shape [rows, columns].
      log_partition: $\log\sum_v e^{z_v}$. Shape [rows].
      entropy: $H$; None without a ``grad_entropy``. Shape [rows].
      grad_logp: $g$. Shape [rows].
      grad_entropy: $h$, or None for 0. Shape [rows].
      local: each row's token as a column of this tile, out of its range where it lies in another.
        Shape [rows].
      grad_own: $g$ at $v = y$, without the correction for a rounded log-partition. Shape [rows].
    """
    size = _rows(logits)
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        logp = logits[rows].sub_(log_partition[rows, None])  # [size, columns]
        g = grad_logp[rows, None]  # [size, 1]
        if grad_entropy is None or entropy is None:
            exp(logp, out=logp).mul_(-g)
        else:
            p = exp(logp, out=torch.empty_like(logp))  # [size, columns]
            logp.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(g).mul_(p).neg_()
    inside, column = _within(local, logits)
    chosen = logits.gather(1, column) + torch.where(inside, grad_own, 0)[:, None]  # [rows, 1]
    logits.scatter_(1, column, chosen)


def _within(local: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens lie in a tile, and their columns there; other tokens get the nearest column.

    Returns:
      (inside, column): bool [rows], int64 [rows, 1].
    """
    last = logits.shape[1] - 1
    return (local >= 0) & (local <= last), local.clamp(0, last)[:, None]


def _rows(logits: Tensor) -> int:
    """Number of rows of a tile that go through all steps together."""
    return max(1, len(logits) if logits.is_cuda else _BLOCK // logits.shape[1])
