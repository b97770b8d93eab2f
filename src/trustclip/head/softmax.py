r"""Softmax statistics of rows whose logits arrive tile by tile, and what follows from a tile.

Each function has a twin in `trustclip.head.kernels` that reads and writes a tile once; `twin`
chooses. Here are the plain ones: the definition, and the fast path of a CPU, where a block of rows
small enough for its cache goes through all steps.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Logits of a block of rows that stay in a core's cache from one step to the next: 512 KiB.
_BLOCK = 1 << 17


@dataclass(frozen=True)
class Running:
    r"""Online softmax (Milakov and Gimelshein, 2018) with a first moment, one entry per row.

    Args:
      peak: largest logit so far, $m$.
      total: $\sum_v e^{z_v - m}$.
      moment: $\sum_v e^{z_v - m}(z_v - m)$, or None where no entropy is wanted.
    """

    peak: Tensor
    total: Tensor
    moment: Tensor | None

    @classmethod
    def start(cls, peak: Tensor, entropy: bool) -> "Running":
        """Statistics of no logits; ``peak`` is taken over. Shape [rows]."""
        # Finite, so that the first tile does not meet infinity minus infinity.
        peak.fill_(torch.finfo(peak.dtype).min / 4)
        return cls(peak, torch.zeros_like(peak), torch.zeros_like(peak) if entropy else None)

    @property
    def log_partition(self) -> Tensor:
        r"""$\log\sum_v e^{z_v}$, in float64: differences of it keep the digits of small ones."""
        return self.peak.double() + self.total.double().log()

    @property
    def entropy(self) -> Tensor | None:
        r"""Entropy of the softmax, nats: $\log s - \sum_v e^{z_v-m}(z_v-m)/s$, no term negative."""
        return None if self.moment is None else self.total.log() - self.moment / self.total

    def at(self, rows: slice) -> "Running":
        """A view of some rows."""
        moment = None if self.moment is None else self.moment[rows]
        return Running(self.peak[rows], self.total[rows], moment)


def fold(logits: Tensor, running: Running, weights: Tensor, shrink: Tensor) -> None:
    r"""Take a tile into the statistics.

    Args:
      logits: $z$. Shape [rows, columns].
      running: statistics, updated in place.
      weights: receives $e^{z - m}$ with the new $m$; may be ``logits``. Shape [rows, columns].
      shrink: receives $e^{m_{before} - m}$, by which earlier sums of weights shrink. Shape [rows].
    """
    before = running.peak.clone()
    total, moment = torch.empty_like(before), torch.empty_like(before)
    size = _rows(logits)
    memory = torch.empty_like(logits[:size])
    parts = (logits, weights, before, running.peak, total, moment)
    for z, e, last, peak, mass, first in zip(*(x.split(size) for x in parts), strict=True):
        torch.maximum(last, z.amax(dim=1), out=peak)
        below = torch.sub(z, peak[:, None], out=memory[: len(z)])
        torch.exp(below, out=e)
        torch.sum(e, dim=1, dtype=z.dtype, out=mass)
        if running.moment is not None:
            torch.sum(below.mul_(e), dim=1, out=first)
    gap = before.sub_(running.peak)
    torch.exp(gap, out=shrink)
    if running.moment is not None:
        running.moment.addcmul_(running.total, gap).mul_(shrink).add_(moment)
    running.total.mul_(shrink).add_(total)


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
        logp = logits[rows].sub_(log_partition[rows, None])
        g = grad_logp[rows, None]
        if grad_entropy is None or entropy is None:
            logp.exp_().mul_(-g)
        else:
            p = logp.exp()
            logp.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(g).mul_(p).neg_()


def _rows(logits: Tensor) -> int:
    """How many rows of a tile go through all steps together."""
    return max(1, len(logits) if logits.is_cuda else _BLOCK // logits.shape[1])


@cache
def _kernels() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    from trustclip.head import kernels

    return kernels


def twin(function: Any, tensor: Tensor) -> Any:
    """The Triton kernel of a function where one can run on the device of ``tensor``."""
    kernels = _kernels() if tensor.is_cuda else None
    return getattr(kernels, function.__name__) if kernels else function
