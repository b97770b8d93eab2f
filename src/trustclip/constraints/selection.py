"""Selection of tokens by rank or at random, the same on every process and split of a batch."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trustclip.constraints.batch import TokenBatch

# SplitMix64 (Steele et al., 2014), its constants as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def uniform(keys: Tensor, seed: int) -> Tensor:
    """One number in [0, 1) per key, uniform over keys: a hash, so there is no state to save.

    Keys are int64, the numbers float64; another seed gives every key an independent one.

    Example:
      >>> u = uniform(torch.arange(100_000), seed=0)
      >>> abs(u.mean().item() - 0.5) < 0.005, (u < 0.1).double().mean().round(decimals=2).item()
      (True, 0.1)
    """
    start = (seed * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    start -= (start >> 63) << 64  # as a signed integer
    state = _hash(_hash(keys + start) + keys)
    return (_shift_right(state, 11)).double() * 2.0**-53


def _hash(x: Tensor) -> Tensor:
    x = x + _GAMMA
    x = (x ^ _shift_right(x, 30)) * _MIX[0]
    x = (x ^ _shift_right(x, 27)) * _MIX[1]
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def nth_largest(
    x: Tensor, n: Tensor, reduce: Callable[[Tensor], Tensor] = lambda counts: counts
) -> tuple[Tensor, Tensor]:
    """The ``n``-th largest number over all ranks, exact in float32, from sums alone.

    A radix select: the 32 bits of the answer, in an order-preserving code of floats, are found
    eight at a time from histograms summed over ranks: four times 256 counts, and no number, are
    exchanged.

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
    order = _flip(x.detach().float().flatten().view(torch.int32)).long() + (1 << 31)  # [numbers]
    prefix = torch.zeros((), dtype=torch.int64, device=x.device)
    n, equal = n.double(), n.double()
    for shift in (24, 16, 8, 0):
        digit = (order >> shift) & 255
        matching = ((order >> (shift + 8)) == prefix).long()
        counts = reduce(_histogram(digit, matching))  # [256]
        # Numbers whose digit is at least this one.
        above = counts.flip(0).cumsum(0).flip(0)
        byte = (above >= n).sum().clamp(min=1) - 1
        equal = _at(counts, byte)
        n = n - (_at(above, byte) - equal)
        prefix = prefix * 256 + byte
    value = _flip((prefix - (1 << 31)).to(torch.int32)).view(torch.float32)
    return value, n / equal.clamp(min=1)


def within_mean(
    x: Tensor, limit: float, reduce: Callable[[Tensor], Tensor] = lambda sums: sums
) -> Tensor:
    """The bound below which the smallest numbers over all ranks have a mean of at most ``limit``.

    The numbers below the bound are the most that can stay when the largest are taken away, one by
    one, until the mean of the rest is at most ``limit``; equal numbers go together. Exact in
    float32, by a radix search like that of `nth_largest`: four times 512 sums are exchanged.

    Args:
      x: this rank's numbers, finite and not negative. Any shape; may be empty.
      limit: largest mean.
      reduce: sums a tensor over ranks.

    Returns:
      The smallest number to take away, infinite where none has to be: ``x.float() < bound`` stays.
      float32 scalar.

    Example:
      >>> within_mean(torch.tensor([4.0, 0.0, 1.0, 9.0]), limit=2.0)
      tensor(9.)
    """
    order = x.detach().float().flatten().view(torch.int32).long()  # [numbers], in their order
    values = x.detach().flatten().double()
    prefix = torch.zeros((), dtype=torch.int64, device=x.device)
    below = torch.zeros(2, 1, dtype=torch.float64, device=x.device)  # sum and count so far
    all_stay = torch.ones((), dtype=torch.bool, device=x.device)
    for shift in (24, 16, 8, 0):
        digit = (order >> shift) & 255
        matching = ((order >> (shift + 8)) == prefix).double()
        weights = (matching * values, matching)
        sums = [_histogram(digit, w) for w in weights]
        up_to = below + reduce(torch.stack(sums)).cumsum(dim=1)  # [2, 256]
        stays = up_to[0] <= limit * up_to[1]  # the mean only grows with the digit
        byte = stays.sum().clamp(max=255)
        all_stay = stays.all() if shift == 24 else all_stay
        below = _at(torch.cat([below, up_to], dim=1), byte)[:, None]
        prefix = prefix * 256 + byte
    return torch.where(all_stay, torch.inf, prefix.to(torch.int32).view(torch.float32))


def _at(x: Tensor, place: Tensor) -> Tensor:
    """``x[..., place]`` of a scalar place, which is not read: no wait for a GPU, no graph break."""
    return x.index_select(-1, place[None]).squeeze(-1)


def _histogram(digit: Tensor, weights: Tensor) -> Tensor:
    """Sum of the weights of each of 256 digits; unlike `bincount`, no device is waited for."""
    return weights.new_zeros(256).index_add_(0, digit, weights)


def _flip(bits: Tensor) -> Tensor:
    """Bits of floats to integers of the same order, and back."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def only_what_matters(batch: TokenBatch) -> TokenBatch:
    """The batch with all completions masked that cannot move the policy."""
    return replace(batch, mask=batch.mask & with_advantage(batch.advantages, batch.mask)[:, None])


def with_advantage(advantages: Tensor, mask: Tensor) -> Tensor:
    """True for completions with an advantage on an unmasked token. Shape [batch]."""
    return (mask & (advantages != 0)).any(dim=1)
