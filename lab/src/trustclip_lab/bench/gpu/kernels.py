"""Triton kernels of `trustclip.head.softmax`: one launch reads and writes a tile of logits.

The products around them are cuBLAS's. One program works on one row, whose second reading finds it
in the GPU's L2 cache.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# Triton's operations keep the precision of what they load, so one kernel serves float32 and
# float64; what is stored takes the dtype of its destination.

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from unittest import mock

import triton
import triton.language as tl
from torch import Tensor

from trustclip.head import logprobs
from trustclip.head.softmax import Running

#: Largest number of logits that a program holds in registers.
_WIDTH = 4096


@triton.jit
def _fold(
    logits, max_, sum_, moment, chosen, rounded, local, weights, shrink, width,
    HAS_MOMENT: tl.constexpr, HAS_OWN: tl.constexpr, ROUNDS: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # a tile may have 2^31 logits and more
    logits += row * width
    weights += row * width
    if HAS_OWN:  # read before the weights, which may take the place of the logits
        own = tl.load(local + row)
        if (own >= 0) & (own < width):
            tl.store(chosen + row, tl.load(logits + own))
    before = tl.load(max_ + row)
    top = before
    mass, first, stored = top * 0, top * 0, top * 0
    for start in range(0, width, W):
        columns = start + tl.arange(0, W)
        z = tl.load(logits + columns, mask=columns < width, other=-float("inf"))
        top = tl.maximum(top, tl.max(z, axis=0))
    for start in range(0, width, W):
        columns = start + tl.arange(0, W)
        inside = columns < width
        gap = tl.load(logits + columns, mask=inside, other=0.0) - top
        e = tl.where(inside, tl.exp(gap), 0.0)
        weight = e.to(weights.dtype.element_ty)
        tl.store(weights + columns, weight, mask=inside)
        mass += tl.sum(e, axis=0)
        if HAS_MOMENT:
            first += tl.sum(e * gap, axis=0)
        if ROUNDS:
            stored += tl.sum(weight.to(e.dtype), axis=0)
    gap = before - top
    factor = tl.exp(gap)
    sum_before = tl.load(sum_ + row)
    if HAS_MOMENT:
        tl.store(moment + row, factor * (tl.load(moment + row) + gap * sum_before) + first)
    if ROUNDS:
        tl.store(rounded + row, factor * tl.load(rounded + row) + stored)
    tl.store(sum_ + row, factor * sum_before + mass)
    tl.store(max_ + row, top)
    tl.store(shrink + row, factor)


@triton.jit
def _scale_rows(x, factor, width, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    by = tl.load(factor + row)
    if by != 1:  # few rows: the others are neither read nor written
        x += row * width
        for start in range(0, width, W):
            columns = start + tl.arange(0, W)
            inside = columns < width
            scaled = tl.load(x + columns, mask=inside, other=0.0) * by
            tl.store(x + columns, scaled, mask=inside)


@triton.jit
def _fold_gradient(
    logits, log_partition, entropy, grad_logp, grad_entropy, local, grad_own, width,
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
    own = tl.where(columns == tl.load(local + row), tl.load(grad_own + row), 0.0)
    tl.store(place, own - tl.exp(logp) * coefficient, mask=inside)


def fold(
    logits: Tensor, running: Running, weights: Tensor, shrink: Tensor, local: Tensor | None = None
) -> None:
    """`trustclip.head.softmax.fold`."""
    rows, width = logits.shape
    _fold[(rows,)](
        logits, running.max, running.sum, running.first_moment, running.chosen,
        running.rounded_sum, local, weights, shrink, width,
        HAS_MOMENT=running.first_moment is not None,
        HAS_OWN=running.chosen is not None and local is not None,
        ROUNDS=running.rounded_sum is not None,
        W=_width(width),
    )  # fmt: skip


def scale_rows(x: Tensor, factor: Tensor) -> None:
    """`trustclip.head.softmax.scale_rows`."""
    rows, width = x.shape
    _scale_rows[(rows,)](x, factor, width, W=_width(width))


def fold_gradient(
    logits: Tensor,
    log_partition: Tensor,
    entropy: Tensor | None,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    local: Tensor,
    grad_own: Tensor,
) -> None:
    """`trustclip.head.softmax.fold_gradient`."""
    rows, width = logits.shape
    size = _width(width)
    _fold_gradient[(rows, triton.cdiv(width, size))](
        logits, log_partition, entropy, grad_logp, grad_entropy, local, grad_own, width,
        HAS_ENTROPY=grad_entropy is not None, W=size,
    )  # fmt: skip


def _width(columns: int) -> int:
    return min(_WIDTH, int(triton.next_power_of_2(columns)))


@contextmanager
def in_head() -> Iterator[None]:
    """The kernels in place of the head's plain functions, for the block."""
    with ExitStack() as stack:
        for module in (logprobs, import_module("trustclip.head.topk")):  # the name is a function's
            for name in ("fold", "scale_rows", "fold_gradient"):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, globals()[name]))
        yield
