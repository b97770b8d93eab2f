"""Random numbers of many seeds at once: every seed has its own streams, whatever seeds run with it.

All are drawn on the CPU, so that a seed means the same on every device, and a result never depends
on how many seeds share a stack.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Streams of one seed. A seed's problem, its first weights and its noise do not depend on how many
#: numbers another purpose has drawn.
PURPOSES = ("problem", "weights", "training", "evaluation")


class Stream:
    """The random numbers of one purpose, for every seed of a stack.

    Args:
      seeds: one for each member of the stack, not necessarily different.
      purpose: one of `PURPOSES`.
      device: where drawn tensors are put.

    Example:
      >>> alone = Stream([7], "training").uniform(2)
      >>> together = Stream([3, 7], "training").uniform(2)
      >>> alone.shape, bool((alone[0] == together[1]).all())
      (torch.Size([1, 2]), True)
    """

    def __init__(self, seeds: Sequence[int], purpose: str, device: str = "cpu") -> None:
        number = PURPOSES.index(purpose)
        self._device = device
        each = list(dict.fromkeys(seeds))
        self._generators = [
            torch.Generator().manual_seed(len(PURPOSES) * seed + number) for seed in each
        ]
        # A seed that is in the stack several times has one generator, whose numbers all share.
        self._index = None if len(each) == len(seeds) else [each.index(seed) for seed in seeds]

    def draw(self, sample: Callable[[torch.Generator], Tensor]) -> Tensor:
        """``sample`` called with the generator of each seed. Shape [seeds, ...]."""
        numbers = torch.stack([sample(g) for g in self._generators])
        return (numbers if self._index is None else numbers[self._index]).to(self._device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers. Shape [seeds, *shape]."""
        return self.draw(lambda g: torch.randn(*shape, generator=g))

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1). Shape [seeds, *shape]."""
        return self.draw(lambda g: torch.rand(*shape, generator=g))

    def integers(self, below: int, *shape: int) -> Tensor:
        """int64 in [0, below). Shape [seeds, *shape]."""
        return self.draw(lambda g: torch.randint(below, shape, generator=g))

    def order(self, n: int) -> Tensor:
        """int64, a random order of 0 to n - 1. Shape [seeds, n]."""
        return self.draw(lambda g: torch.randperm(n, generator=g))
