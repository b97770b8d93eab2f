r"""Trees of decisions small enough to enumerate: a bandit, and a language of a few words.

An episode is a path of ``depth`` actions from the root; the reward is drawn at its leaf. A state is
the path so far, as a prompt and the tokens after it are for a language model. With one table of
logits per state every expectation is a sum over paths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trustclip.constraints.divergences import categorical_kl

DOUBLE = torch.float64


@dataclass(frozen=True)
class Exact:
    """Exact return and entropy of a policy, by enumeration.

    Args:
      returns: expected reward of an episode.
      entropy: mean entropy of the visited states, nats per token.
    """

    returns: float
    entropy: float


@dataclass(frozen=True)
class Tree:
    """A tree of decisions with a reward of 0 or 1 at each leaf.

    Args:
      depth: actions per episode; 1 is a bandit.
      actions: choices at every state.
      success: chance of reward 1 at each leaf. Shape [actions ** depth].

    Example:
      >>> bandit = Tree(1, 3, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
      >>> bandit.states, bandit.exact(torch.zeros(1, 3, dtype=torch.float64)).returns
      (1, 0.5)
    """

    depth: int
    actions: int
    success: Tensor

    @property
    def states(self) -> int:
        """Number of states in which an action is chosen."""
        return sum(self.actions**level for level in range(self.depth))

    def visits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        r"""Probability of reaching every state and every leaf.

        Args:
          logits: policy. Shape [states, actions].

        Returns:
          (of states, of leaves). Shapes [states] and [actions ** depth]; the first sums to
          ``depth``, the second to 1.
        """
        chances = logits.softmax(-1)
        levels, level, first = [], torch.ones(1, dtype=logits.dtype), 0
        for _ in range(self.depth):
            levels.append(level)
            last = first + len(level)
            level = (level[:, None] * chances[first:last]).flatten()
            first = last
        return torch.cat(levels), level

    def exact(self, logits: Tensor) -> Exact:
        """Return and entropy of a policy. Logits of shape [states, actions]."""
        states, leaves = self.visits(logits)
        logp = logits.log_softmax(-1)
        entropies = -(logp.exp() * logp).sum(-1)
        return Exact(
            (leaves * self.success).sum().item(), (states * entropies).sum().item() / self.depth
        )

    def kl(self, logits_old: Tensor, logits: Tensor) -> tuple[float, float]:
        """KL(old || new): mean over the old policy's tokens, and the largest of any state; nats."""
        per_state = categorical_kl(logits_old.log_softmax(-1), logits.log_softmax(-1))
        states, _ = self.visits(logits_old)
        return (states * per_state).sum().item() / self.depth, per_state.max().item()

    def sample(
        self, logits: Tensor, episodes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Episodes of a policy.

        Returns:
          (states, actions, rewards): int64 [episodes, depth] twice, and float64 [episodes].
        """
        _, leaves = self.visits(logits)
        ends = leaves.multinomial(episodes, replacement=True, generator=generator)
        states, actions, first = [], [], 0
        for level in range(self.depth):
            prefix = ends // self.actions ** (self.depth - level)
            states.append(first + prefix)
            actions.append(ends // self.actions ** (self.depth - level - 1) % self.actions)
            first += self.actions**level
        lucky = torch.rand(episodes, dtype=DOUBLE, generator=generator) < self.success[ends]
        return torch.stack(states, 1), torch.stack(actions, 1), lucky.double()


def bandit(seed: int) -> Tree:
    """Ten arms with uniformly distributed probabilities of success."""
    return Tree(1, 10, _uniform(10, seed))


def tree(seed: int) -> Tree:
    """Four decisions of three actions; most of the 81 leaves rarely succeed."""
    return Tree(4, 3, _uniform(81, seed) ** 4)


def _uniform(size: int, seed: int) -> Tensor:
    return torch.rand(size, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


ENVIRONMENTS = {"bandit": bandit, "tree": tree}
