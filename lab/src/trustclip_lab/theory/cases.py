r"""Small explicit softmax policies: every sum over actions is exact, in float64.

One `Case` is one state of a tabular softmax policy. Its tokens are *all* its actions, each with
its probability, so the expectation over $a\sim\pi_{old}$ is a sum and no sampling is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.divergences import categorical_kl
from trustclip.constraints.loss import coefficient

DOUBLE = torch.float64


class Sides(NamedTuple):
    """The two sides of an equation.

    Example:
      >>> Sides(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).error
      0.2
    """

    left: Tensor
    right: Tensor

    @property
    def error(self) -> float:
        """Largest difference, relative to the largest number on either side."""
        scale = torch.cat([self.left.flatten(), self.right.flatten()]).abs().max().item()
        return (self.left - self.right).abs().max().item() / scale if scale else 0.0


@dataclass(frozen=True)
class Case:
    r"""One state $s$: the policy now and at the start of the update, and fixed advantages.

    Args:
      logits: $\theta_{s,\cdot}$, float64. Shape [actions].
      logits_old: the same of the policy that sampled. Shape [actions].
      advantages: $A(s, a)$, a number for every action. Shape [actions].
      visits: $d^{\pi_{old}}(s) > 0$, the weight of the state in the objective.

    Example:
      >>> case = Case(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([1.0, -1.0]))
      >>> case.ratio
      tensor([1.4621, 0.5379])
    """

    logits: Tensor
    logits_old: Tensor
    advantages: Tensor
    visits: float = 1.0

    @property
    def logp(self) -> Tensor:
        r"""$\log\pi_\theta(a|s)$, nats. Shape [actions]."""
        return self.logits.log_softmax(-1)

    @property
    def logp_old(self) -> Tensor:
        r"""$\log\pi_{old}(a|s)$, nats. Shape [actions]."""
        return self.logits_old.log_softmax(-1)

    @property
    def ratio(self) -> Tensor:
        r"""$w(a) = \pi_\theta(a|s)/\pi_{old}(a|s)$. Shape [actions]."""
        return (self.logp - self.logp_old).exp()

    def batch(self) -> TokenBatch:
        """Every action as a sequence of one token, with the exact KL divergences of the state."""
        new, old = self.logp[:, None], self.logp_old[:, None]
        new_old = categorical_kl(self.logp, self.logp_old)
        return TokenBatch(
            new, old, self.advantages[:, None], torch.ones_like(new, dtype=torch.bool),
            kl_old_new=torch.full_like(new, self.divergence()), kl_new_old=new_old.expand_as(new),
            keys=torch.arange(len(new))[:, None],
        )  # fmt: skip

    def divergence(self) -> float:
        """Exact KL(old || new) of the state, nats."""
        return categorical_kl(self.logp_old, self.logp).item()

    def in_logits(self, weights: Tensor) -> Tensor:
        r"""Gradient in the logits of an objective with these gradients in log-probabilities.

        $d(s)\sum_{a'}\pi_{old}(a')\,g(a')\,\big(1_{a=a'} - \pi_\theta(a)\big)$.

        Args:
          weights: $g(a)$, derivative of the action's objective in $\log\pi_\theta(a)$.
            Shape [actions].

        Returns:
          Shape [actions].
        """
        sampled = self.logp_old.exp() * weights
        return self.visits * (sampled - self.logp.exp() * sampled.sum())

    def gradient(self, method: Method) -> Tensor:
        """Full-batch gradient of a method's objective in the logits. Shape [actions]."""
        return self.in_logits(coefficient(method, self.batch())[:, 0])


def entropy(logits: Tensor) -> float:
    """Entropy of a softmax policy, nats.

    Example:
      >>> round(entropy(torch.zeros(4)), 6)
      1.386294
    """
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum().item()


def random_cases(count: int, seed: int = 0, distance: float = 0.6) -> Iterator[Case]:
    """Random states of 3 to 11 actions with two different policies.

    Args:
      count: how many.
      seed: of the generator.
      distance: standard deviation of the logits' movement, nats.

    Example:
      >>> [len(case.logits) for case in random_cases(4)]
      [11, 5, 4, 10]
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> Tensor:
        return torch.randn(size, dtype=DOUBLE, generator=generator)

    for _ in range(count):
        size = int(torch.randint(3, 12, (1,), generator=generator))
        old = 1.5 * normal(size)
        visits = 0.1 + torch.rand(1, dtype=DOUBLE, generator=generator).item()
        yield Case(old + distance * normal(size), old, normal(size), visits)
