"""Masked sums, and a ratio that no masked token can turn into a NaN."""

import torch
from torch import Tensor

#: Largest exponent that `safe_exp` raises e to: e^40 is above any ratio that still means something,
#: and finite in float32 when it is squared, or multiplied by two weights of e^20, the largest in
#: `trustclip.methods.sampler`. Gates never see this limit: they compare log-ratios.
MAX_LOG_RATIO = 40.0


def widen(x: Tensor) -> Tensor:
    """``x`` in float32 at least: float16 and bfloat16 are widened, float64 stays."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def choose(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """`torch.where` of two numbers in the dtype of ``like``; its own result would be float32."""
    return torch.where(condition, like.new_full((), yes), like.new_full((), no))


def readable(x: Tensor) -> bool:
    """Whether the numbers of ``x`` can be looked at: on a GPU they would be waited for."""
    return not torch.compiler.is_compiling() and type(x) is Tensor and x.device.type == "cpu"


def seen_finite(x: Tensor) -> bool:
    """Whether every number of ``x`` is finite, where that can be seen; else their sum is not."""
    return readable(x) and bool(x.detach().sum().isfinite())


def within(x: Tensor, most: float) -> bool:
    """Whether no $|x|$ exceeds ``most``, where that can be seen; False over NaN and infinity.

    What guards against larger numbers is then left out: it costs more than to look.
    """
    if not readable(x) or not x.numel():
        return False
    low, high = x.detach().aminmax()
    return -most <= low.item() and high.item() <= most


def zero_masked(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with 0 where ``mask`` is False, in value and in gradient, even over NaN and inf."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def safe_exp(log_ratio: Tensor) -> Tensor:
    r"""Ratio $w = e^{x}$ that stays finite with a finite gradient, for $|x|$ of any size.

    The limit is one of overflow, not of trust: a kept token with $x = 35$ has a weight of
    $10^{15}$, as in TRL, where verl stops at $e^{20}$. A NaN stays one, in value and in gradient.

    Example:
      >>> safe_exp(torch.tensor([0.0, 1000.0])).isfinite().all().item()
      True
    """
    return _at_most(log_ratio).exp()


def safe_expm1(log_ratio: Tensor) -> Tensor:
    r"""Ratio minus one, $e^{x} - 1$, exact near 0 and finite for $x$ of any size.

    Example:
      >>> safe_expm1(torch.tensor([0.0, 1000.0])).isfinite().all().item()
      True
    """
    return torch.expm1(_at_most(log_ratio))


def _at_most(log_ratio: Tensor) -> Tensor:
    if within(log_ratio, MAX_LOG_RATIO):
        return log_ratio
    # Not `clamp`, whose gradient at a NaN is 0.
    return log_ratio.masked_fill(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO)


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of ``x`` where ``mask`` is True. Scalar."""
    return zero_masked(x, mask).sum()
