"""Training a table of logits with the library's methods, with exact measurements."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.adaptive import adapts
from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.candidates import Candidates
from trustclip.constraints.diagnostics import Window
from trustclip.constraints.divergences import categorical_kl, categorical_tv, k3
from trustclip.engines.limits import Supply, refusal
from trustclip_lab.tabular.advantages import group_mean
from trustclip_lab.tabular.trees import DOUBLE, Tree

#: Answers to one prompt: what a reward is compared with.
GROUP = 8


@dataclass(frozen=True)
class Schedule:
    """Length and step size of the training.

    Args:
      learning_rate: step along the gradient in the logits.
      generations: times a batch is sampled.
      updates: gradient steps on each batch.
      episodes: in a batch; a multiple of `GROUP`.
      reward_noise: share of the sampled rewards that are flipped.
      delta: threshold at which the sample's gate and the exact one are compared, nats.
    """

    learning_rate: float
    generations: int
    updates: int
    episodes: int
    reward_noise: float
    delta: float


@dataclass(frozen=True)
class Outcome:
    """Exact results of one training run.

    Args:
      returns: expected reward of an episode in the end, as a share of the best leaf's.
      entropy: nats per token in the end.
      kl: KL(old || new) that a generation ends at, mean over its tokens and over generations, nats.
      largest_kl: the same of the state that moved most, nats.
      fell: share of generations after which the expected reward was lower than before.
      gated: share of tokens without gradient in updates after the first of a generation.
      missed: share of those tokens where k3 of the token is within ``delta`` and the exact
        KL(old || new) of its state is not.
      needless: the other way round.
    """

    returns: float
    entropy: float
    kl: float
    largest_kl: float
    fell: float
    gated: float
    missed: float
    needless: float


@dataclass(frozen=True)
class Generation:
    """Episodes sampled from ``logits``, with the fields that methods may need.

    Args:
      logits: of the policy that sampled. Shape [states, actions].
      states: state of each token. Shape [episodes, depth].
      actions: its action. Shape [episodes, depth].
      advantages: of the episode. Shape [episodes, depth].
      number: of the generation.
    """

    logits: Tensor
    states: Tensor
    actions: Tensor
    advantages: Tensor
    number: int

    @classmethod
    def of(
        cls, tree: Tree, logits: Tensor, schedule: Schedule, number: int, random: torch.Generator
    ) -> "Generation":
        """Sample, reward, flip some rewards, and compute group advantages."""
        states, actions, rewards = tree.sample(logits, schedule.episodes, random)
        flipped = torch.rand(len(rewards), dtype=DOUBLE, generator=random) < schedule.reward_noise
        advantages = group_mean(torch.where(flipped, 1 - rewards, rewards), GROUP)
        return cls(logits, states, actions, advantages[:, None].expand_as(states), number)

    def batch(self, method: Method, logits: Tensor) -> TokenBatch:
        """The tokens under ``logits``, with all fields that the method requires, exact."""
        logp, logp_old = logits.log_softmax(-1), self.logits.log_softmax(-1)  # [states, actions]
        optional: dict[str, Any] = {
            name: self._optional(name, logp, logp_old) for name in method.requires
        }
        tokens = (self.states, self.actions)
        return TokenBatch(
            logp[tokens], logp_old[tokens], self.advantages,
            torch.ones_like(self.advantages, dtype=torch.bool), **optional,
        )  # fmt: skip

    def _optional(self, name: str, logp: Tensor, logp_old: Tensor) -> Tensor | Candidates:
        if name == "groups":
            return (torch.arange(len(self.states))[:, None] // GROUP).expand_as(self.states)
        if name == "keys":
            count = self.states.numel()
            return self.number * count + torch.arange(count).view_as(self.states)
        if name == "logp_rollout":
            return logp_old[self.states, self.actions]
        if name == "candidates":  # every action; the policy before the updates has sampled
            before = logp_old[self.states]
            return Candidates(logp[self.states], before, before)
        return PER_STATE[name](logp, logp_old)[self.states]

    def gates(self, logits: Tensor, delta: float) -> tuple[float, float]:
        """Shares of tokens where only the sampled gate is open, and only the exact one."""
        logp, logp_old = logits.log_softmax(-1), self.logits.log_softmax(-1)
        sample = k3((logp - logp_old)[self.states, self.actions]) <= delta
        exact = categorical_kl(logp_old, logp)[self.states] <= delta
        shares = (sample & ~exact, ~sample & exact)
        missed, needless = (share.double().mean().item() for share in shares)
        return missed, needless


#: What a method may require of a state: (log-probabilities now, before) -> [states]. Top-K
#: divergences are exact ones here: K is every action.
PER_STATE = {
    "entropy": lambda new, old: -(new.exp() * new).sum(-1),
    "entropy_old": lambda new, old: -(old.exp() * old).sum(-1),
    "kl_old_new": lambda new, old: categorical_kl(old, new),
    "kl_new_old": lambda new, old: categorical_kl(new, old),
    "top_k_kl": lambda new, old: categorical_kl(old, new),
    "top_k_tv": lambda new, old: categorical_tv(old, new),
}
#: What tabular problems supply to a method.
SUPPLY = Supply(
    "the tabular problem",
    frozenset({*PER_STATE, "logp_rollout", "groups", "keys", "candidates"}),
    whole_loop=True, kl_gradient=True,
)  # fmt: skip


def train(tree: Tree, method: Method, schedule: Schedule, seed: int) -> Outcome:
    """Train from the uniform policy.

    Args:
      tree: the problem.
      method: the constraint; its objective is averaged over tokens.
      schedule: how long and how hard.
      seed: of the sampling.

    Raises:
      ValueError: the method requires what `SUPPLY` lacks.

    Example:
      >>> from trustclip.constraints.registry import method
      >>> from trustclip_lab.tabular.trees import bandit
      >>> schedule = Schedule(8.0, generations=20, updates=4, episodes=64, reward_noise=0.0,
      ...                     delta=0.07)
      >>> outcome = train(bandit(0), method("atr"), schedule, seed=0)
      >>> round(outcome.returns, 2), round(outcome.kl, 2)
      (0.99, 0.03)
    """
    if problem := refusal(method, SUPPLY):
        raise ValueError(problem)
    random = torch.Generator().manual_seed(seed)
    logits = torch.zeros(tree.states, tree.actions, dtype=DOUBLE)
    returns, moves, gates = [tree.exact(logits).returns], [], []
    for number in range(schedule.generations):
        generation = Generation.of(tree, logits, schedule, number, random)
        for update in range(schedule.updates):
            errors = generation.gates(logits, schedule.delta)
            logits, gated_share, method = _step(generation, method, logits, schedule.learning_rate)
            if update:
                gates.append((*errors, gated_share))
        returns.append(tree.exact(logits).returns)
        moves.append(tree.kl(generation.logits, logits))
    fell = sum(b < a - 1e-12 for a, b in pairwise(returns)) / schedule.generations
    (missed, needless, gated), (kl, largest_kl) = _means(gates), _means(moves)
    return Outcome(
        returns=returns[-1] / tree.success.max().item(), entropy=tree.exact(logits).entropy,
        kl=kl, largest_kl=largest_kl, fell=fell, gated=gated, missed=missed, needless=needless,
    )  # fmt: skip


def _step(
    generation: Generation, method: Method, logits: Tensor, learning_rate: float
) -> tuple[Tensor, float, Method]:
    """One step of gradient ascent: logits, share of tokens without gradient, the next method."""
    leaf = logits.detach().requires_grad_()
    batch = generation.batch(method, leaf)
    surrogate = method.surrogate(batch)
    (gradient,) = torch.autograd.grad(surrogate.objective.mean(), leaf)  # [states, actions]
    gated = 1 - surrogate.kept.double().mean().item()
    if adapts(method):
        window = Window()
        window.add(batch, surrogate)
        method = method.after(window.read())
    return (leaf + learning_rate * gradient).detach(), gated, method


def _means(rows: list[tuple[float, ...]]) -> list[float]:
    return torch.tensor(rows, dtype=DOUBLE).mean(dim=0).tolist()
