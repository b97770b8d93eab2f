"""Random numbers that depend on a key and a seed alone: the same on every rank and every split."""

from torch import Tensor

# SplitMix64 (Steele et al., 2014), its constants as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def uniform(keys: Tensor, seed: int) -> Tensor:
    """One number in [0, 1) per key, uniform over keys: a hash, so there is no state to save.

    Args:
      keys: int64, any shape.
      seed: another seed, another independent number for every key.

    Returns:
      float64, the shape of ``keys``.

    Example:
      >>> import torch
      >>> u = uniform(torch.arange(100_000), seed=0)
      >>> abs(u.mean().item() - 0.5) < 0.005, (u < 0.1).double().mean().round(decimals=2).item()
      (True, 0.1)
    """
    state = _hash(_hash(keys + _wrapped(seed)) + keys)
    return (_shifted(state, 11)).double() * 2.0**-53


def _hash(x: Tensor) -> Tensor:
    x = x + _GAMMA
    x = (x ^ _shifted(x, 30)) * _MIX[0]
    x = (x ^ _shifted(x, 27)) * _MIX[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _wrapped(seed: int) -> int:
    value = (seed * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    return value - (1 << 64) if value >> 63 else value
