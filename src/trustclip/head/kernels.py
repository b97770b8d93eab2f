"""Triton kernels of `trustclip.head.softmax`: one launch reads and writes a tile of logits.

The products around them are cuBLAS's. One program works on one row, which lies in a GPU's L2 cache
when it is read for the second time.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# Triton's operations keep the precision of what they load, so one kernel serves float32 and
# float64; what is stored takes the dtype of its destination.

import triton
import triton.language as tl
from torch import Tensor

from trustclip.head.softmax import Running

#: Largest number of logits that a program holds in registers.
_WIDTH = 4096


@triton.jit
def _fold(
    logits, max_, sum_, moment, weights, shrink, width, HAS_MOMENT: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    # int64: a tile of 2^31 logits and more is allowed.
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    weights += row * width
    before = tl.load(max_ + row)
    top = before
    for start in range(0, width, W):
        columns = start + tl.arange(0, W)
        z = tl.load(logits + columns, mask=columns < width, other=-float("inf"))
        top = tl.maximum(top, tl.max(z, axis=0))
    mass = top * 0
    first = top * 0
    for start in range(0, width, W):
        columns = start + tl.arange(0, W)
        inside = columns < width
        gap = tl.load(logits + columns, mask=inside, other=0.0) - top
        e = tl.where(inside, tl.exp(gap), 0.0)
        tl.store(weights + columns, e.to(weights.dtype.element_ty), mask=inside)
        mass += tl.sum(e, axis=0)
        if HAS_MOMENT:
            first += tl.sum(e * gap, axis=0)
    gap = before - top
    factor = tl.exp(gap)
    sum_before = tl.load(sum_ + row)
    if HAS_MOMENT:
        tl.store(moment + row, factor * (tl.load(moment + row) + gap * sum_before) + first)
    tl.store(sum_ + row, factor * sum_before + mass)
    tl.store(max_ + row, top)
    tl.store(shrink + row, factor)


@triton.jit
def _fold_gradient(
    logits, log_partition, entropy, grad_logp, grad_entropy, width,
    HAS_ENTROPY: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * W + tl.arange(0, W)
    inside = columns < width
    place = logits + row * width + columns
    logp = tl.load(place, mask=inside, other=0.0) - tl.load(log_partition + row)
    coefficient = tl.load(grad_logp + row)
    if HAS_ENTROPY:
        coefficient += tl.load(grad_entropy + row) * (logp + tl.load(entropy + row))
    tl.store(place, -tl.exp(logp) * coefficient, mask=inside)


def fold(logits: Tensor, running: Running, weights: Tensor, shrink: Tensor) -> None:
    """`trustclip.head.softmax.fold`."""
    rows, width = logits.shape
    _fold[(rows,)](
        logits, running.max, running.sum, running.first_moment, weights, shrink, width,
        HAS_MOMENT=running.first_moment is not None, W=_width(width),
    )  # fmt: skip


def fold_gradient(
    logits: Tensor,
    log_partition: Tensor,
    entropy: Tensor | None,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
) -> None:
    """`trustclip.head.softmax.fold_gradient`."""
    rows, width = logits.shape
    size = _width(width)
    _fold_gradient[(rows, triton.cdiv(width, size))](
        logits, log_partition, entropy, grad_logp, grad_entropy, width,
        HAS_ENTROPY=grad_entropy is not None, W=size,
    )  # fmt: skip


def _width(columns: int) -> int:
    return min(_WIDTH, triton.next_power_of_2(columns))
