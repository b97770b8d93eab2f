"""What one step of reinforcement learning costs on H100s, from shapes, rates and measured ratios.

A step is one generation of completions and every update on it; sampling and training share the
GPUs. Each time is operations over a rate or bytes over a bandwidth; `step_rates` has the source of
every rate.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from step_rates import rate

from trustclip.support.checked import Count

Tuning = Literal["full", "lora"]


@dataclass(frozen=True)
class Shape:
    """A decoder as its published configuration gives it.

    Args:
      name: for people.
      layers: blocks.
      hidden: width H.
      heads: query heads.
      kv_heads: key and value heads.
      intermediate: width of the MLP, or of one expert.
      rollout_gpus: GPUs that hold one copy for sampling.
      tied: whether the embedding is the head.
      experts: of a layer; 1 for a dense model.
      active: experts that a token visits.
      vocabulary: tokens V.
      head_dim: width of one attention head.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    rollout_gpus: int = 1
    tied: bool = False
    experts: int = 1
    active: int = 1
    vocabulary: int = 151_936
    head_dim: int = 128

    def body(self, experts: float) -> float:
        """Parameters without embedding and head, with ``experts`` experts in each layer.

        Example:
          >>> [round(s.body(s.experts) / 1e9, 2) for s in MODELS.values()]
          [1.41, 6.95, 31.21, 29.91]
        """
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.layers * (attention + 3 * self.hidden * self.intermediate * experts + router)

    @property
    def product(self) -> float:
        """Operations of one product of a token's hidden state with the head: 2HV."""
        return 2.0 * self.hidden * self.vocabulary

    @property
    def parameters(self) -> float:
        """Parameters of the whole model."""
        return self.body(self.experts) + self.product / (2 if self.tied else 1)

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token, bfloat16."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    def forward(self, length: float) -> float:
        """Operations of a token's forward pass without the head, in a text of ``length`` tokens."""
        attention = 2 * self.layers * self.heads * self.head_dim * length
        return 2 * self.body(self.active) + attention


#: Qwen3, from each model's ``config.json``.
MODELS = {
    "1.7b": Shape("Qwen3-1.7B", 28, 2048, 16, 8, 6144, tied=True),
    "8b": Shape("Qwen3-8B", 36, 4096, 32, 8, 12288),
    "32b": Shape("Qwen3-32B", 64, 5120, 64, 8, 25600, rollout_gpus=4),
    "30b-a3b": Shape(
        "Qwen3-30B-A3B", 48, 2048, 32, 4, 768, rollout_gpus=4, experts=128, active=8
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One step."""

    completions: Count = 2048
    """Completions of a generation."""
    prompt: Count = 256
    """Tokens of a prompt, mean."""
    tokens: Count = 2048
    """Tokens of a completion, mean."""
    longest: Count = 4096
    """Tokens of the longest completion."""
    updates: Count = 4
    """Optimizer updates that share a generation."""
    epochs: Count = 1
    """Passes over a generation."""
    zero_share: float = 0.0
    """Share of completions with zero advantage, which no update uses."""
    tuning: Tuning = "full"
    """All weights, or LoRA with a frozen head."""

    def __post_init__(self) -> None:
        if self.longest < self.tokens:
            raise ValueError(
                f"--longest must be at least the mean, --tokens {self.tokens}, got {self.longest}."
            )
        if not 0 <= self.zero_share <= 1:
            raise ValueError(f"--zero-share must be from 0 to 1, got {self.zero_share:g}.")

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return self.prompt + self.tokens

    @property
    def trained(self) -> float:
        """Completions used by updates, each counted once per pass."""
        return self.completions * (1 - self.zero_share) * self.epochs

    @property
    def scored(self) -> bool:
        """Whether the old policy must be scored; with a single update every ratio is 1."""
        return self.updates * self.epochs > 1


class Cost(NamedTuple):
    """Seconds of a step; `head` is part of `old` and `update`, `exact_kl` and `gate` are on top."""

    rollout: float
    old: float
    update: float
    sync: float
    head: float
    exact_kl: float
    gate: float

    @property
    def step(self) -> float:
        """All parts but the constraint, in sequence."""
        return self.rollout + self.old + self.update + self.sync

    @property
    def training(self) -> float:
        """All parts but sampling, which may run on its own GPUs."""
        return self.step - self.rollout


def fits(model: Shape, gpus: int, tuning: Tuning) -> bool:
    """Whether weights, gradients and optimizer, sharded, and a copy for sampling fit."""
    each = rate("state") if tuning == "full" else 2.0
    return gpus >= model.rollout_gpus and each * model.parameters / gpus <= rate("memory") - rate(
        "room"
    )


def cost(model: Shape, gpus: int, work: Work) -> Cost:
    """Seconds of each part of a step.

    Args:
      model: its shape.
      gpus: H100s, all used by sampling and by training in turn.
      work: the step.

    Example:
      >>> step = cost(MODELS["8b"], 64, Work())
      >>> step.exact_kl < step.head < step.update < step.step
      True
    """
    completion = work.completions * work.tokens
    trained = work.trained * work.tokens
    seconds = model.product / (rate("product") * gpus)
    scoring = completion * rate("frozen") * seconds if work.scored else 0.0
    full = work.tuning == "full"
    products = 3 * rate("trained") if full else 2 * rate("frozen")
    learning = trained * products * seconds
    if full:  # KL needs both heads: nothing kept of the old one serves the new one
        exact_kl = trained * rate("exact_kl") * seconds
    else:
        exact_kl = completion * rate("bregman") * seconds
    idle = _idle(work.completions, gpus)
    forward = work.completions * work.length * model.forward(work.length)
    forward *= idle / (_training_rate(model) * gpus)
    return Cost(
        rollout=rollout(model, gpus, work),
        old=forward + scoring if work.scored else 0.0,
        update=_update(model, gpus, work) + learning,
        sync=2 * model.parameters / rate("link"),
        head=scoring + learning,
        exact_kl=exact_kl if work.scored else 0.0,
        gate=trained * rate("gate") / (rate("bandwidth") * gpus),
    )


def _training_rate(model: Shape) -> float:
    return rate("peak") * rate("moe" if model.experts > 1 else "dense")


def _idle(sequences: float, gpus: int) -> float:
    """Time of the busiest GPU over the mean time.

    Example:
      >>> _idle(512, 64), _idle(96, 64)
      (1.0, 1.3333333333333333)
    """
    return max(1, math.ceil(sequences / gpus)) / (sequences / gpus) if sequences else 1.0


def _update(model: Shape, gpus: int, work: Work) -> float:
    """Forward, recomputed forward and backward of all updates, or the exchange of weights."""
    if not work.trained:
        return 0.0
    count = work.updates * work.epochs
    sequences = work.trained / count
    passes = 4 if work.tuning == "full" else 3  # LoRA: no gradient of frozen weights
    compute = sequences * work.length * passes * model.forward(work.length)
    compute *= _idle(sequences, gpus) / (_training_rate(model) * gpus)
    batches = math.ceil(max(1.0, sequences / gpus) * work.length / 16_384)
    traffic = 3 * 2 * model.parameters * (1 - 1 / gpus)  # gather twice, scatter gradients once
    return count * max(compute, batches * traffic / rate("link"))


def rollout(model: Shape, gpus: int, work: Work) -> float:
    """Seconds of sampling: weights and cache are read at every step of the longest completion."""
    copies = max(1, gpus // model.rollout_gpus)
    queue = work.completions / copies
    room = 0.9 * rate("memory") * model.rollout_gpus - 2 * model.parameters
    together = max(1.0, min(queue, room / (model.cache_bytes * work.length)))
    steps = max(work.longest, queue * work.tokens / together)
    active_experts = model.experts * (1 - (1 - model.active / model.experts) ** together)
    weights = 2 * model.body(active_experts) + model.product
    cache = queue * work.tokens * model.cache_bytes * (work.prompt + work.tokens / 2)
    speed = rate("decode") * model.rollout_gpus
    memory = (steps * weights + cache) / (rate("bandwidth") * speed)
    operations = queue * (work.length * model.forward(work.length) + work.tokens * model.product)
    return max(memory, operations / (rate("peak") * speed)) + steps * rate("tick")
