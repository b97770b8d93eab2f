"""Updates of a stack of weights: Adam, with a learning rate and a gradient bound of each seed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trustclip_lab.stack.policies import Weights

#: Adam's decay of the mean and of the mean square, and what prevents a division by 0.
DECAY, DECAY_SQUARE, EPSILON = 0.9, 0.999, 1e-8


class Step:
    r"""Adam on a stack of weights, with each seed's gradient bounded by its own norm.

    The numbers of `torch.optim.Adam`, which has one rate for all. A seed whose gradient is not
    finite is left with a gradient of 0; `skipped` counts.

    Args:
      weights: first values; not changed.
      rate: learning rate, or one for each seed. Shape [seeds].
      bound: on the norm of a seed's gradient.
    """

    def __init__(self, weights: Sequence[Tensor], rate: float | Sequence[float], bound: float):
        self.weights = [w.detach().clone().requires_grad_() for w in weights]
        seeds = len(weights[0])
        self.skipped = torch.zeros(seeds, device=weights[0].device)
        self._rates = [rate] * seeds if isinstance(rate, int | float) else list(rate)
        self._means = [torch.zeros_like(w) for w in self.weights]
        self._squares = [torch.zeros_like(w) for w in self.weights]
        self._updates = 0
        self._bound = bound

    @property
    def detached(self) -> Weights:
        """The weights, not to be trained."""
        return [w.detach() for w in self.weights]

    def down(self, losses: Tensor) -> None:
        """One update on the loss of each seed. Shape [seeds]."""
        gradients = torch.autograd.grad(losses.sum(), self.weights)
        squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
        norm = squares.sqrt()  # [seeds]
        finite = norm.isfinite()
        self.skipped += ~finite
        scale = torch.where(finite, (self._bound / (norm + 1e-6)).clamp(max=1.0), 0.0)
        if not finite.all():
            gradients = [torch.where(_wide(finite, g), g, 0.0) for g in gradients]
        self._adam([g * _wide(scale, g) for g in gradients])

    @torch.no_grad()
    def _adam(self, gradients: Sequence[Tensor]) -> None:
        self._updates += 1
        mean_share, square_share = (1 - d**self._updates for d in (DECAY, DECAY_SQUARE))
        # In float64 first, as torch.optim.Adam does.
        steps = torch.tensor([rate / mean_share for rate in self._rates])
        steps = steps.to(self.skipped.device)
        for weight, gradient, mean, square in zip(
            self.weights, gradients, self._means, self._squares, strict=True
        ):
            mean.lerp_(gradient, 1 - DECAY)
            square.mul_(DECAY_SQUARE).addcmul_(gradient, gradient, value=1 - DECAY_SQUARE)
            denominator = (square.sqrt() / math.sqrt(square_share)).add_(EPSILON)
            weight.sub_((mean * _wide(steps, mean)).div_(denominator))


def _wide(each: Tensor, like: Tensor) -> Tensor:
    """A value of each seed as the shape [seeds, 1, ...] of a weight."""
    return each.view(-1, *[1] * (like.dim() - 1))
