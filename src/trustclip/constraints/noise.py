r"""Noise of two passes over the same weights: what it costs at a length, and which gates it closes.

Two programs, or one program in two batches, score a token $d_t$ nats apart. Over a completion the
differences add up: with variance $v$ per token and $E[e^{d_t}] = 1$, which holds for samples of the
whole vocabulary, $S = \sum_t d_t$ is near $\mathcal N(-vT/2,\ vT)$ for long completions.
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch

#: Neighbouring tokens that are drawn together, so that their correlation counts.
BLOCK = 32
#: A simulated batch has at most so many tokens, and completions between these numbers.
_TOKENS, _FEWEST, _MOST = 1 << 20, 64, 512


def block_sample(length: int, tokens: int) -> Tensor:
    """Places of tokens that make completions of a length from those of a comparison.

    Blocks of neighbours are drawn with replacement. Shape [completions, length].

    Example:
      >>> block_sample(100, 50).shape, int(block_sample(100, 50).max()) < 50
      (torch.Size([512, 100]), True)
    """
    count = min(max(_TOKENS // length, _FEWEST), _MOST)
    blocks = -(-length // BLOCK)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(tokens, (count, blocks, 1), generator=generator)  # of each block
    return ((first + torch.arange(BLOCK)) % tokens).flatten(1)[:, :length]


def variance(noise: Tensor) -> float:
    """Variance per token of sums over completions, nats²: that of sums over blocks of neighbours.

    The noise is in the order of the tokens. Shape [tokens].

    Example:
      >>> alike = torch.tensor([0.1, -0.1]).repeat_interleave(BLOCK).repeat(50)  # in blocks
      >>> 0.1 < variance(alike) < 0.32, variance(torch.tensor([0.1, -0.1]).repeat(999)) < 1e-4
      (True, True)
    """
    sums = noise.double()[block_sample(BLOCK, len(noise))].sum(dim=1)  # [blocks]
    return sums.var().item() / BLOCK


def effective_share(v: float, length: int) -> float:
    r"""Effective sample size of weights $e^S$ of whole completions, a share of their number.

    $1/E[e^{2S}] = e^{-vT}$, with $v$ in nats² and $T$ the tokens of a completion.

    Example:
      >>> round(effective_share(0.0025, 512), 3), round(effective_share(0.0025, 8192), 10)
      (0.278, 1.3e-09)
    """
    return math.exp(-v * length)


def capped_weight(v: float, length: int, cap: float) -> float:
    r"""$E[\min(e^S, C)]$: what a capped weight of whole completions is on average, 1 without a cap.

    Example:
      >>> [round(capped_weight(0.0025, length, 2.0), 2) for length in (64, 1024, 16384)]
      [0.99, 0.57, 0.0]
    """
    sd = math.sqrt(v * length)
    if sd == 0:
        return min(1.0, cap)
    below = (math.log(cap) - sd**2 / 2) / sd
    normal = NormalDist()
    return normal.cdf(below) + cap * normal.cdf(-(below + sd))


@torch.no_grad()
def cut_by_noise(method: Method, noise: Tensor, length: int) -> float:
    """Share of tokens that a method cuts on equal weights, since two passes differ by noise.

    Args:
      method: one that needs nothing but log-probabilities and advantages.
      noise: differences of two passes over the same weights in the order of the tokens, nats.
        Shape [tokens].
      length: tokens of a completion.

    Example:
      >>> import trustclip as tc
      >>> gspo = tc.method("gspo", low=3e-4, high=4e-4)
      >>> draw = torch.Generator().manual_seed(1)
      >>> noise = 0.003 * torch.randn(1 << 16, generator=draw, dtype=torch.float64)
      >>> 0.03 < cut_by_noise(gspo, noise, 200) < 0.06, cut_by_noise(gspo, noise / 3000, 200)
      (True, 0.0)
      >>> cut_by_noise(tc.method("clip"), noise, 200)
      0.0
    """
    x = noise.double()[block_sample(length, len(noise))]  # [completions, length]
    old, a = torch.full_like(x, -1.0), torch.ones_like(x)
    a[1::2] = -1.0  # the sign alternates over completions
    batch = TokenBatch(old + x, old, a, torch.ones_like(x, dtype=torch.bool))
    return 1 - method.surrogate(batch).kept.double().mean().item()
