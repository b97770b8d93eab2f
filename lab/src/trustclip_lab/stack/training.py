"""Training of many seeds at once: sampling, verified rewards, updates and evaluation in one stack.

The constraint, advantages, aggregation and the distances from the sampler are the library's own.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import divergences
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.candidates import Candidates
from trustclip.constraints.drift import drift_metrics
from trustclip.constraints.sampler import sampler_metrics, summary
from trustclip_lab.stack.methods import Fields, StackedMethod, batches_of
from trustclip_lab.stack.policies import POLICIES, Policy, Weights, sample
from trustclip_lab.stack.sampler import Sampler, round_trip
from trustclip_lab.stack.settings import LabSettings
from trustclip_lab.stack.steps import Step
from trustclip_lab.stack.streams import Stream
from trustclip_lab.stack.tasks import Task, task
from trustclip_lab.tabular import advantages as advantage_rules
from trustclip_lab.tabular.training import PER_STATE

#: A generation of a seed, as a row: numbers by name.
Row = dict[str, float]

#: Learning rate of the fine-tuning that makes the start, and its prompts per update.
SFT_RATE, SFT_PROMPTS = 3e-3, 32


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training of many seeds.

    Args:
      seeds: their numbers.
      scores: share of right answers to held-out prompts, before and after each generation.
        Shape [generations + 1, seeds].
      rows: for each generation, a row of each seed; see `measure`.
      passk: share of held-out prompts that one of `LabSettings.pass_k` answers to is right of, at
        the end; None where that is 0. Shape [seeds].
    """

    seeds: tuple[int, ...]
    scores: Tensor
    rows: list[list[Row]]
    passk: Tensor | None = None


@dataclass(frozen=True)
class World:
    """What all settings of one task share: problems, policy, first weights, held-out prompts."""

    task: Task
    policy: Policy
    start: tuple[Tensor, ...]
    held_out: Tensor

    @classmethod
    def of(cls, settings: LabSettings, seeds: tuple[int, ...]) -> "World":
        """The world of these seeds; built once where only the training differs."""
        s = settings
        shape = (s.task, s.policy, s.width, s.layers, s.sft_steps, s.eval_prompts, s.device)
        each = tuple(dict.fromkeys(seeds))
        return _repeat(_world(each, *shape), [each.index(seed) for seed in seeds])


def _repeat(world: World, index: list[int]) -> World:
    """The world with a member for each of ``index``, which may name one several times."""
    if index == list(range(len(world.held_out))):
        return world
    at = torch.tensor(index, device=world.held_out.device)
    start = tuple(weight[at] for weight in world.start)
    return World(world.task.at(at), world.policy, start, world.held_out[at])


@functools.lru_cache(maxsize=8)
def _world(seeds: tuple[int, ...], *shape: Any) -> World:
    name, kind, width, layers, steps, held_out, device = shape
    problem = Stream(seeds, "problem", device)
    family = task(name, problem)
    policy = POLICIES[kind](family, width, layers)
    stream = Stream(seeds, "weights", device)
    steps = family.fine_tuning if steps is None else steps
    weights = fine_tune(policy, policy.initial(stream), stream, steps)
    return World(family, policy, tuple(weights), family.prompts(held_out, problem))


def fine_tune(policy: Policy, weights: Weights, stream: Stream, steps: int) -> Weights:
    """Weights after maximum-likelihood updates on worked answers to fresh prompts."""
    step = Step(weights, SFT_RATE, 1.0)
    for _ in range(steps):
        prompts = policy.task.prompts(SFT_PROMPTS, stream)
        tokens = policy.task.solve(prompts, stream)
        inputs = policy.inputs(policy.task.encode(prompts), tokens)
        logp, _ = logps_of(policy, step.weights, inputs, tokens)
        step.down(-logp.mean(dim=(1, 2)))
    return step.detached


class Copies:
    """The policies that sample: rounded copies, or those of earlier generations.

    Generation g is sampled by the policy of generation max(g - lag, 0).
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._history: list[tuple[int, Weights]] = []

    def next(self, weights: Weights, update: int) -> tuple[Weights, int]:
        """Weights to sample the next generation with, and the number of their updates."""
        self._history.append((update, [w.clone() for w in weights]))
        if len(self._history) > self._sampler.lag + 1:
            self._history.pop(0)
        version, old = self._history[0]
        if self._sampler.dtype == "float32":
            return old, version
        # Seed by seed: what is a row of a matrix is the rule's to say.
        rounded = [
            torch.stack([round_trip(one, self._sampler.dtype) for one in stack]) for stack in old
        ]
        return rounded, version


def logps_of(
    policy: Policy, weights: Sequence[Tensor], inputs: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens, and of the whole vocabulary at their places."""
    every = policy.logits(list(weights), inputs).log_softmax(-1)  # [seeds, n, time, vocabulary]
    return every.gather(-1, tokens[..., None])[..., 0], every


@dataclass(frozen=True)
class Generation:
    """Sampled answers with all that an update needs, the seeds first in every tensor.

    Args:
      inputs: of the policy. Shape [seeds, n, time, inputs].
      tokens: sampled. Shape [seeds, n, time].
      every_old: log-probabilities of the old policy. Shape [seeds, n, time, vocabulary].
      every_rollout: those of the policy that sampled; None where nothing asks for candidates.
      fields: of a `TokenBatch` but for ``logp``. Each [seeds, n, time].
    """

    inputs: Tensor
    tokens: Tensor
    every_old: Tensor
    every_rollout: Tensor | None
    fields: dict[str, Tensor]

    def part(self, index: Tensor) -> "Generation":
        """The answers at ``index``. Shape [seeds, m]."""

        def take(x: Tensor) -> Tensor:
            return x[torch.arange(len(x), device=x.device)[:, None], index]

        fields = {name: take(value) for name, value in self.fields.items()}
        rollout = None if self.every_rollout is None else take(self.every_rollout)
        every_old = take(self.every_old)
        return Generation(take(self.inputs), take(self.tokens), every_old, rollout, fields)

    def under(
        self, policy: Policy, weights: Sequence[Tensor], required: Sequence[str]
    ) -> tuple[Fields, Tensor]:
        """Fields of a batch under weights, with those of the whole vocabulary that are required,
        and the log-probabilities of the whole vocabulary."""
        logp, every = logps_of(policy, weights, self.inputs, self.tokens)
        now = every.detach()
        exact: dict[str, Any] = {
            name: PER_STATE[name](now, self.every_old) for name in required if name in PER_STATE
        }
        if "candidates" in required and self.every_rollout is not None:
            three = (every, self.every_old, self.every_rollout)
            exact["candidates"] = Candidates(*(x.flatten(0, 1) for x in three))
        return {**self.fields, "logp": logp, **exact}, now


def train(
    settings: LabSettings, seeds: Sequence[int], rates: Sequence[float] | None = None
) -> TrainingResult:
    """Train from each of the seeds.

    Args:
      settings: what and how; its number of seeds is not used.
      seeds: their numbers. A seed's result does not depend on the others.
      rates: a learning rate for each of them, in place of the settings'; so a seed may be there
        several times.

    Example:
      >>> brief = LabSettings(generations=1, sft_steps=1, eval_prompts=4, depth=2)
      >>> train(brief, [3, 5]).scores.shape
      torch.Size([2, 2])
    """
    rate = settings.learning_rate if rates is None else rates
    training = _Training(settings, tuple(seeds), rate)
    scores, rows = [training.score()], []
    for number in range(settings.generations):
        rows.append(training.generation(number))
        scores.append(training.score())
    passk = training.pass_rate(settings.pass_k) if settings.pass_k else None
    return TrainingResult(tuple(seeds), torch.stack(scores), rows, passk)


class _Training:
    """State of a training between generations."""

    def __init__(
        self, settings: LabSettings, seeds: tuple[int, ...], rate: float | Sequence[float]
    ) -> None:
        self.settings = settings
        self.world = World.of(settings, seeds)
        self.step = Step(self.world.start, rate, settings.max_grad_norm)
        self.stacked = StackedMethod(settings.method, len(seeds))
        self._copies = Copies(settings.sampler)
        self._stream = Stream(seeds, "training", settings.device)
        self._evaluation = Stream(seeds, "evaluation", settings.device)
        self._size = settings.prompts * settings.group * settings.passes // settings.depth
        self._aggregate = _aggregation(settings, self._size, self.world.task.length)

    def score(self) -> Tensor:
        """Share of right answers to the held-out prompts. Shape [seeds]."""
        return self._rewards(self.settings.eval_samples).mean(dim=(1, 2)).cpu()

    def pass_rate(self, k: int) -> Tensor:
        """Share of held-out prompts that one of ``k`` answers to is right of. Shape [seeds]."""
        return self._rewards(k).amax(dim=2).mean(dim=1).cpu()

    @torch.no_grad()
    def _rewards(self, many: int) -> Tensor:
        """Rewards of answers to the held-out prompts. Shape [seeds, prompts, many]."""
        world = self.world
        prompts = world.held_out.repeat_interleave(many, dim=1)
        uniform = self._evaluation.uniform(prompts.shape[1], world.task.length)
        features = world.task.encode(prompts)
        tokens, _ = sample(world.policy, self.step.detached, features, uniform)
        return world.task.rewards(prompts, tokens).unflatten(1, (-1, many))

    def generation(self, number: int) -> list[Row]:
        """Sample, update `depth` times, and measure. A row for each seed."""
        s, policy, required = self.settings, self.world.policy, self.settings.method.requires
        generation = self._sample(number)
        self.stacked.begin(lambda: generation.under(policy, self.step.detached, required)[0])
        n = generation.tokens.shape[1]
        order = torch.cat([self._stream.order(n) for _ in range(s.passes)], dim=1)
        for index in order.split(self._size, dim=1):
            fields, _ = generation.part(index).under(policy, self.step.weights, required)
            self.step.down(self._aggregate(-self.stacked.objective(fields)))
            self.stacked.finish()
        fields_needed = (*required, *["candidates"] * s.drift)
        with torch.no_grad():
            fields, every = generation.under(policy, self.step.detached, fields_needed)
        return measure(self.stacked, fields, every, distances=s.distances)

    @torch.no_grad()
    def _sample(self, number: int) -> Generation:
        s, world = self.settings, self.world
        prompts = world.task.prompts(s.prompts, self._stream).repeat_interleave(s.group, dim=1)
        update = number * s.depth
        sampler, version = self._copies.next(self.step.detached, update)
        features = world.task.encode(prompts)
        n = prompts.shape[1]
        uniform = self._stream.uniform(n, world.task.length)
        tokens, logp_rollout = sample(world.policy, sampler, features, uniform)
        rewards = world.task.rewards(prompts, tokens)
        inverted = self._stream.uniform(n) < s.noise  # [seeds, n]
        advantages = _advantages(s, torch.where(inverted, 1 - rewards, rewards))
        inputs = world.policy.inputs(features, tokens)
        logp_old, every_old = logps_of(world.policy, self.step.detached, inputs, tokens)
        candidates = s.drift or "candidates" in s.method.requires
        every_rollout = logps_of(world.policy, sampler, inputs, tokens)[1] if candidates else None
        fields = {
            "logp_old": logp_old,
            "logp_rollout": logp_rollout,
            "advantages": advantages[..., None].expand_as(logp_old),
            "mask": torch.ones_like(tokens, dtype=torch.bool),
        }
        numbers = self._numbers(tokens, number, update - version)
        return Generation(inputs, tokens, every_old, every_rollout, {**fields, **numbers})

    def _numbers(self, tokens: Tensor, number: int, lag: int) -> dict[str, Tensor]:
        """Integer fields: groups, keys that no other token of the seed has, and lag."""
        seeds, n, time = tokens.shape
        each = torch.arange(n * time, device=tokens.device).view(n, time)
        groups = torch.arange(n, device=tokens.device)[:, None].expand(n, time)
        group = groups // self.settings.group
        # Groups of different seeds are different groups.
        first = torch.arange(seeds, device=tokens.device)[:, None, None] * n
        return {
            "groups": group + first,
            "keys": (each + number * n * time).expand_as(tokens),
            "lag": torch.full_like(tokens, lag),
        }


def _advantages(settings: LabSettings, rewards: Tensor) -> Tensor:
    """Group advantages by the library's rule. Shape [seeds, n]."""
    rule = getattr(advantage_rules, settings.advantage)
    return rule(rewards.flatten(), settings.group).view_as(rewards)


def _aggregation(settings: LabSettings, n: int, length: int) -> Callable[[Tensor], Tensor]:
    """From values [seeds, n, time] to the loss of each seed, by the library's rule.

    The rule is linear in the values, so its gradient, taken once, is the weight of each.
    """
    values = torch.zeros(n, length, device=settings.device, requires_grad=True)
    mask = torch.ones_like(values, dtype=torch.bool)
    longest = length if settings.aggregation == "dr_grpo" else None
    loss = aggregate(settings.aggregation, values, mask, max_length=longest)
    (weight,) = torch.autograd.grad(loss, values)  # [n, time]
    return lambda x: (weight * x).sum((1, 2))


@torch.no_grad()
def measure(stacked: StackedMethod, fields: Fields, every: Tensor, *, distances: bool) -> list[Row]:
    """Numbers about a generation under the weights that it ends with, for each seed.

    ``entropy`` and ``k3`` are means over tokens, nats; ``gated`` is the share of tokens without
    gradient; ``sampler/...`` are `trustclip.constraints.sampler.sampler_metrics` of the whole
    generation, with the effective sample sizes made from them; ``drift/...`` are those of
    `trustclip.constraints.drift.drift_metrics`.

    Args:
      stacked: the method.
      fields: of the generation; with candidates the drift is measured.
      every: log-probabilities of the vocabulary. Shape [seeds, n, time, vocabulary].
      distances: whether ``sampler/...`` are among them.
    """
    _, kept = stacked.coefficient(fields)
    own = {
        "entropy": -(every.exp() * every).sum(-1).mean((1, 2)),
        "k3": divergences.k3(fields["logp"] - fields["logp_old"]).mean((1, 2)),
        "gated": (~kept).float().mean((1, 2)),
    }
    columns = {name: value.tolist() for name, value in own.items()}  # each [seeds]
    rows = [{name: value[s] for name, value in columns.items()} for s in range(len(kept))]
    without_lag = {name: value for name, value in fields.items() if name != "lag"}
    each = batches_of(without_lag) if distances or "candidates" in fields else []
    for row, batch, method in zip(rows, each, stacked.methods, strict=False):
        pairs = sampler_metrics(batch) if distances else {}
        row |= summary({name: (x / n).item() for name, (x, n) in pairs.items()}, None)
        row |= {name: (x / n).item() for name, (x, n) in drift_metrics(batch, method).items()}
    return rows
