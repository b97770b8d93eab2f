r"""Policies of many seeds in one stack of weights: every product is a batched one.

A policy is a list of tensors ``[seeds, ...]`` and a function from its inputs at each position to
logits. Matrices are stored as in `torch.nn.Linear`, ``[seeds, out, in]``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from trustclip_lab.stack.streams import Stream
from trustclip_lab.stack.tasks import Task

Weights = list[Tensor]
#: Keys and values by block of a transformer. Each [seeds * n, heads, time, head].
Past = dict[int, tuple[Tensor, Tensor]]
PolicyName = Literal["window", "transformer"]


class Policy(ABC):
    """An autoregressive policy over the tokens of a task, without its weights.

    Args:
      task: it answers; the sizes of input and output are the task's.
      width: hidden units.
      layers: of a transformer.
    """

    def __init__(self, task: Task, width: int, layers: int = 1) -> None:
        self.task, self.width, self.layers = task, width, layers
        #: Numbers of one position: the prompt's features, the token before, the position.
        self.input_size = task.features + task.vocabulary + 1 + task.length

    @abstractmethod
    def initial(self, stream: Stream) -> Weights:
        """First weights of each seed."""

    @abstractmethod
    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Logits after each position.

        Args:
          weights: of all seeds.
          inputs: from `Policy.inputs`. Shape [seeds, n, time, inputs].

        Returns:
          Shape [seeds, n, time, vocabulary].
        """

    @abstractmethod
    def reader(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """A function from the input at the next position, from `input_at`, to the logits after it,
        [seeds, n, vocabulary]; it remembers the positions before."""

    def inputs(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Inputs at each position of answers.

        Args:
          features: of the prompts. Shape [seeds, n, length, features].
          tokens: int64. Shape [seeds, n, length].

        Returns:
          Shape [seeds, n, length, inputs].
        """
        start = torch.full_like(tokens[..., :1], self.task.vocabulary)
        before = torch.cat([start, tokens[..., :-1]], dim=-1)
        return self._join(features, before, torch.arange(self.task.length, device=tokens.device))

    def input_at(self, features: Tensor, before: Tensor, t: int) -> Tensor:
        """Inputs at position ``t``. Shape [seeds, n, 1, inputs]."""
        place = torch.tensor([t], device=before.device)
        return self._join(features[:, :, t : t + 1], before[..., None], place)

    def _join(self, features: Tensor, before: Tensor, places: Tensor) -> Tensor:
        position = one_hot(places, self.task.length).to(features.dtype)
        parts = [
            features,
            one_hot(before, self.task.vocabulary + 1).to(features.dtype),
            position.expand(*features.shape[:2], -1, -1),
        ]
        return torch.cat(parts, dim=-1)


class Window(Policy):
    """One hidden layer of tanh units that sees the prompt, the position and the token before."""

    def initial(self, stream: Stream) -> Weights:
        out = self.task.vocabulary
        first = stream.normal(self.width, self.input_size) / math.sqrt(self.input_size)
        last = 0.3 * stream.normal(out, self.width) / math.sqrt(self.width)
        seeds = len(first)
        return [first, first.new_zeros(seeds, self.width), last, last.new_zeros(seeds, out)]

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        first, first_bias, last, last_bias = weights
        x = inputs.flatten(1, 2)  # [seeds, n * time, inputs]
        hidden = torch.tanh(_affine(x, first, first_bias))
        return _affine(hidden, last, last_bias).unflatten(1, inputs.shape[1:3])

    def reader(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        return lambda inputs: self.logits(weights, inputs)[:, :, 0]


class Transformer(Policy):
    """Pre-norm decoder: RMS norms, causal attention of 32 numbers a head, and a GELU network.

    With ``width`` 128 and two layers it has 0.4 million weights.
    """

    head = 32

    def __init__(self, task: Task, width: int, layers: int = 2) -> None:
        super().__init__(task, width, layers)
        if width % self.head:
            raise ValueError(f"`width` of a transformer must be a multiple of 32, got {width}.")

    def initial(self, stream: Stream) -> Weights:
        d = self.width

        def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return scale * stream.normal(rows, columns) / math.sqrt(columns)

        small = 1 / math.sqrt(2 * self.layers)  # sums of residual branches keep their size
        weights = [matrix(d, self.input_size)]
        for _ in range(self.layers):
            weights += [matrix(3 * d, d), matrix(d, d, small)]
            weights += [matrix(4 * d, d), matrix(d, 4 * d, small)]
        return [*weights, matrix(self.task.vocabulary, d, 0.3)]

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return self._read(weights, inputs, {})

    def reader(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        past: Past = {}
        return lambda inputs: self._read(weights, inputs, past)[:, :, 0]

    def _read(self, weights: Weights, inputs: Tensor, past: Past) -> Tensor:
        """Logits after each position of ``inputs``: all of an answer, or its next one.

        ``past`` holds the keys and values of the positions before it, and gets its own.
        """
        embedding, *blocks, last = weights
        x = torch.bmm(inputs.flatten(1, 2), embedding.mT)  # [seeds, n * time, width]
        for i in range(0, len(blocks), 4):
            project, mix, up, down = blocks[i : i + 4]
            qkv = torch.bmm(_norm(x), project.mT).unflatten(1, inputs.shape[1:3]).flatten(0, 1)
            parts = qkv.unflatten(-1, (3, -1, self.head)).permute(2, 0, 3, 1, 4)
            query, key, value = parts  # each [seeds * n, heads, time, head]
            if i in past:
                key, value = (
                    torch.cat(pair, 2) for pair in zip(past[i], (key, value), strict=True)
                )
            past[i] = key, value
            mixed = scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
            x = x + torch.bmm(mixed.transpose(1, 2).reshape(x.shape), mix.mT)
            hidden = torch.nn.functional.gelu(torch.bmm(_norm(x), up.mT))
            x = x + torch.bmm(hidden, down.mT)
        return torch.bmm(_norm(x), last.mT).unflatten(1, inputs.shape[1:3])


def _affine(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None], x, matrix.mT)


def _norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


POLICIES: dict[str, type[Policy]] = {"window": Window, "transformer": Transformer}


def sample(
    policy: Policy, weights: Weights, features: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample an answer to each prompt.

    Args:
      policy: the policy.
      weights: its weights.
      features: of the prompts. Shape [seeds, n, length, features].
      uniform: in [0, 1), one for each token. Shape [seeds, n, length].

    Returns:
      Tokens, int64, and their log-probabilities. Both [seeds, n, length].
    """
    before = torch.full(features.shape[:2], policy.task.vocabulary, device=features.device)
    next_logits = policy.reader(weights)
    tokens, logps = [], []
    for t in range(policy.task.length):
        logp = next_logits(policy.input_at(features, before, t)).log_softmax(-1)
        cumulative = logp.exp().cumsum(-1)  # [seeds, n, vocabulary]
        # Rounding leaves the last sum off 1; a policy of NaN draws the first token.
        below = uniform[..., t : t + 1] * cumulative[..., -1:] >= cumulative
        before = below.sum(-1).clamp(max=policy.task.vocabulary - 1)
        tokens.append(before)
        logps.append(logp.gather(-1, before[..., None])[..., 0])
    return torch.stack(tokens, dim=-1), torch.stack(logps, dim=-1)
