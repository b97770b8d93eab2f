"""Levels: where the ratio is measured, on the token, on the prefix or on the whole sequence."""

from typing import Literal

from torch import Tensor

from trustclip.masked import sequence_mean, zero_masked

Level = Literal["token", "prefix", "sequence"]


def token(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The token's own log-ratio. Shape [batch, time]."""
    return zero_masked(log_ratio, mask)


def prefix(log_ratio: Tensor, mask: Tensor) -> Tensor:
    r"""Mean log-ratio of the tokens up to and including this one: $\tfrac1t\sum_{i\le t} x_i$.

    Example:
      >>> import torch
      >>> prefix(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
      tensor([[1., 2., 0.]])
    """
    total = zero_masked(log_ratio, mask).cumsum(dim=1)
    return zero_masked(total / mask.cumsum(dim=1).clamp(min=1), mask)


def sequence(log_ratio: Tensor, mask: Tensor) -> Tensor:
    r"""Mean log-ratio of the sequence at each of its tokens (GSPO, Zheng et al., 2025).

    Its exponential is the length-normalised sequence ratio $s = \exp(\tfrac1T\sum_t x_t)$.

    Example:
      >>> import torch
      >>> sequence(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
      tensor([[2., 2., 0.]])
    """
    return zero_masked(sequence_mean(log_ratio, mask)[:, None].expand_as(log_ratio), mask)


LEVELS = {"token": token, "prefix": prefix, "sequence": sequence}


def log_ratio_at(level: Level, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Log-ratio measured at ``level``. Shape [batch, time], nats; 0 where masked.

    Args:
      level: ``"token"``, ``"prefix"`` or ``"sequence"``.
      log_ratio: token log-ratios, nats. Shape [batch, time].
      mask: True where the token counts.

    Example:
      >>> import torch
      >>> log_ratio_at("token", torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]]))
      tensor([[1., 0.]])
    """
    return LEVELS[level](log_ratio, mask)
