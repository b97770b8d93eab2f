"""Masked sums and means, and a ratio that no masked token can turn into a NaN."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Largest exponent that `safe_exp` raises e to: e^80 is finite in float32 and above any ratio
#: that still means something. Gates never see this limit: they compare log-ratios.
MAX_LOG_RATIO = 80.0


def widen(x: Tensor) -> Tensor:
    """``x`` in float32 at least: float16 and bfloat16 are widened, float64 stays."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def zero_masked(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with 0 where ``mask`` is False, in value and in gradient, even over NaN and inf."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def safe_exp(log_ratio: Tensor) -> Tensor:
    r"""Ratio $w = e^{x}$ that stays finite with a finite gradient, for $|x|$ of any size.

    Example:
      >>> safe_exp(torch.tensor([0.0, 1000.0])).isfinite().all().item()
      True
    """
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def safe_expm1(log_ratio: Tensor) -> Tensor:
    r"""Ratio minus one, $e^{x} - 1$, exact near 0 and finite for $x$ of any size.

    Example:
      >>> safe_expm1(torch.tensor([0.0, 1000.0])).isfinite().all().item()
      True
    """
    return torch.expm1(log_ratio.clamp(max=MAX_LOG_RATIO))


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of ``x`` where ``mask`` is True. Scalar."""
    return zero_masked(x, mask).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``x`` where ``mask`` is True; 0 when it is True nowhere. Scalar."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def sequence_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of ``x`` over the unmasked tokens of each sequence. Shape [batch]."""
    return zero_masked(x, mask).sum(dim=1)


def sequence_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``x`` over the unmasked tokens of each sequence; 0 for an empty one. Shape [batch].

    Example:
      >>> sequence_mean(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
      tensor([2.])
    """
    return sequence_sum(x, mask) / mask.sum(dim=1).clamp(min=1)


def nth_largest(
    x: Tensor, n: Tensor, reduce: Callable[[Tensor], Tensor] = lambda counts: counts
) -> tuple[Tensor, Tensor]:
    """The ``n``-th largest number over all ranks, exact in float32, from sums alone.

    A radix select: of the 32 bits that order floats, the answer's are found eight at a time from
    histograms, so that a rank tells the others four times 256 counts and no number.

    Args:
      x: this rank's numbers, finite. Any shape; may be empty.
      n: from 1, for the largest, to the count over all ranks. Scalar.
      reduce: sums a tensor over ranks.

    Returns:
      (the number, the share of those equal to it that are among the ``n`` largest), scalars.

    Example:
      >>> nth_largest(torch.tensor([0.5, -3.0, 7.25, 0.5, -0.1]), torch.tensor(2))
      (tensor(0.5000), tensor(0.5000, dtype=torch.float64))
    """
    order = _flipped(x.detach().float().flatten().view(torch.int32)).long() + (1 << 31)
    found = torch.zeros((), dtype=torch.int64, device=x.device)
    n, equal = n.double(), n.double()
    for shift in (24, 16, 8, 0):
        digit = (order >> shift) & 255
        matching = ((order >> (shift + 8)) == found).double()
        counts = reduce(torch.bincount(digit, weights=matching, minlength=256))
        # Numbers whose digit is at least this one.
        above = counts.flip(0).cumsum(0).flip(0)
        chosen = (above >= n).sum().clamp(min=1) - 1
        equal = counts[chosen]
        n = n - (above[chosen] - equal)
        found = found * 256 + chosen
    value = _flipped((found - (1 << 31)).to(torch.int32)).view(torch.float32)
    return value, n / equal.clamp(min=1)


def _flipped(bits: Tensor) -> Tensor:
    """Bits of floats to integers of the same order, and back."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
