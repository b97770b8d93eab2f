"""Problems with a verified answer, small enough for many seeds at once, and different in kind.

Every seed has its own problem, drawn from the same family. A policy writes ``length`` tokens,
one at a time; it sees the prompt's features at each position and the token before. The reward is 1
for a right answer and 0 for any other.
"""

import copy
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from trustclip.support.names import unknown
from trustclip_lab.stack.streams import Stream


class Task(ABC):
    """One family of problems, for every seed of a stack.

    Args:
      stream: that a seed's problem is drawn from.
    """

    #: Tokens of an answer.
    length: ClassVar[int]
    #: Size of the vocabulary.
    vocabulary: ClassVar[int]
    #: Numbers that the policy sees of a prompt at each position.
    features: ClassVar[int]
    #: Updates on worked answers after which one sampled answer in ten to three is right.
    fine_tuning: ClassVar[int]

    def __init__(self, stream: Stream) -> None:
        del stream  # a family without parameters needs none

    def at(self, index: Tensor) -> Self:
        """The problems of the seeds at ``index``, which may name a seed several times."""
        subset = copy.copy(self)
        for name, value in vars(self).items():
            setattr(subset, name, value[index] if isinstance(value, Tensor) else value)
        return subset

    @abstractmethod
    def prompts(self, n: int, stream: Stream) -> Tensor:
        """``n`` prompts of each seed. Shape [seeds, n, ...]."""

    @abstractmethod
    def encode(self, prompts: Tensor) -> Tensor:
        """What the policy sees of prompts. Shape [seeds, n, length, features]."""

    @abstractmethod
    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """1.0 for each right answer, else 0.0.

        Args:
          prompts: from `prompts`.
          tokens: int64. Shape [seeds, n, length].

        Returns:
          float. Shape [seeds, n].
        """

    @abstractmethod
    def solve(self, prompts: Tensor, stream: Stream) -> Tensor:
        """A right answer to each prompt, to fine-tune on. int64. Shape [seeds, n, length]."""


class Teacher(Task):
    """Four tokens, each the choice of a hidden linear teacher; right if three of them are.

    Short, and every token matters alike.
    """

    length, vocabulary, features = 4, 8, 8
    fine_tuning = 400
    needed = 3

    def __init__(self, stream: Stream) -> None:
        self._teacher = stream.normal(self.length, self.features, self.vocabulary)

    def prompts(self, n: int, stream: Stream) -> Tensor:
        return stream.normal(n, self.features)

    def encode(self, prompts: Tensor) -> Tensor:
        return prompts[:, :, None].expand(-1, -1, self.length, -1)

    def solve(self, prompts: Tensor, stream: Stream) -> Tensor:
        return self._answers(prompts)

    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        return ((tokens == self._answers(prompts)).sum(-1) >= self.needed).float()

    def _answers(self, prompts: Tensor) -> Tensor:
        choices = [torch.bmm(prompts, self._teacher[:, t]).argmax(-1) for t in range(self.length)]
        return torch.stack(choices, dim=-1)


class Chain(Task):
    """Chain arithmetic: a number, then six steps modulo 5; each token is the result so far.

    One wrong step spoils all that follow, and the last token alone is graded.
    """

    length, vocabulary = 6, 5
    fine_tuning = 400
    operations = 3  # plus, minus, times
    features = 2 * vocabulary + operations

    def prompts(self, n: int, stream: Stream) -> Tensor:
        start = stream.integers(self.vocabulary, n, 1)
        operands = stream.integers(self.vocabulary, n, self.length)
        operations = stream.integers(self.operations, n, self.length)
        return torch.cat([start, operands, operations], dim=-1)  # [seeds, n, 1 + 2 * length]

    def encode(self, prompts: Tensor) -> Tensor:
        start, operands, operations = prompts.split([1, self.length, self.length], dim=-1)
        first = one_hot(start, self.vocabulary).float()
        later = torch.zeros_like(first).expand(-1, -1, self.length - 1, -1)
        parts = [
            torch.cat([first, later], dim=2),
            one_hot(operands, self.vocabulary).float(),
            one_hot(operations, self.operations).float(),
        ]
        return torch.cat(parts, dim=-1)

    def solve(self, prompts: Tensor, stream: Stream) -> Tensor:
        return self._results(prompts)

    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        return (tokens[..., -1] == self._results(prompts)[..., -1]).float()

    def _results(self, prompts: Tensor) -> Tensor:
        now = prompts[..., 0]
        results = []
        for t in range(self.length):
            operand, operation = prompts[..., 1 + t], prompts[..., 1 + self.length + t]
            candidates = torch.stack([now + operand, now - operand, now * operand])  # [3, seeds, n]
            now = candidates.gather(0, operation[None])[0] % self.vocabulary
            results.append(now)
        return torch.stack(results, dim=-1)


class Needle(Task):
    """Sixteen tokens of which two decide: at the others, any token will do.

    A hidden linear teacher chooses the decisive ones from the prompt; which positions they are, a
    mark in the prompt says. Right if both are. The horizon is long, and most of a ratio of whole
    sequences is noise.
    """

    length, vocabulary, features = 16, 8, 9
    fine_tuning = 60
    decisive = 2

    def __init__(self, stream: Stream) -> None:
        self._teacher = stream.normal(self.features - 1, self.vocabulary)

    def prompts(self, n: int, stream: Stream) -> Tensor:
        numbers = stream.normal(n, self.features - 1)
        places = stream.uniform(n, self.length)
        marks = places >= places.topk(self.decisive, dim=-1).values[..., -1:]
        return torch.cat([numbers, marks.float()], dim=-1)  # [seeds, n, features - 1 + length]

    def encode(self, prompts: Tensor) -> Tensor:
        numbers, marks = self._parts(prompts)
        # A prompt is seen where it matters only: elsewhere there is nothing to learn from it.
        return torch.cat([numbers[:, :, None] * marks[..., None], marks[..., None]], dim=-1)

    def solve(self, prompts: Tensor, stream: Stream) -> Tensor:
        _, marks = self._parts(prompts)
        anything = stream.integers(self.vocabulary, *prompts.shape[1:2], self.length)
        return torch.where(marks.bool(), self._answers(prompts), anything)

    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        _, marks = self._parts(prompts)
        return ((tokens == self._answers(prompts)) | ~marks.bool()).all(-1).float()

    def _answers(self, prompts: Tensor) -> Tensor:
        numbers, _ = self._parts(prompts)
        return torch.bmm(numbers, self._teacher).argmax(-1)[..., None]  # [seeds, n, 1]

    def _parts(self, prompts: Tensor) -> tuple[Tensor, ...]:
        return prompts.split([self.features - 1, self.length], dim=-1)


class Many(Task):
    """Eight tokens under a rule that three of nine satisfy at each step: 6,561 right answers.

    The sum of a token and the one before it must leave the remainder modulo 3 that the prompt asks
    for at that place. What a policy prefers among right answers earns nothing.
    """

    length, vocabulary, features = 8, 9, 3
    fine_tuning = 350

    def prompts(self, n: int, stream: Stream) -> Tensor:
        return stream.integers(self.features, n, self.length)

    def encode(self, prompts: Tensor) -> Tensor:
        return one_hot(prompts, self.features).float()

    def solve(self, prompts: Tensor, stream: Stream) -> Tensor:
        choices = stream.integers(self.vocabulary // self.features, *prompts.shape[1:])
        tokens = [torch.zeros_like(prompts[..., 0])]
        for t in range(self.length):
            remainder = (prompts[..., t] - tokens[-1]) % self.features
            tokens.append(remainder + self.features * choices[..., t])
        return torch.stack(tokens[1:], dim=-1)

    def rewards(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        before = torch.cat([torch.zeros_like(tokens[..., :1]), tokens[..., :-1]], dim=-1)
        return ((tokens + before) % self.features == prompts).all(-1).float()


TASKS: dict[str, type[Task]] = {
    "teacher": Teacher,
    "chain": Chain,
    "needle": Needle,
    "many": Many,
}


def task(name: str, stream: Stream) -> Task:
    """The family of problems of that name, with each seed's own problem.

    Raises:
      ValueError: unknown name.
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    return TASKS[name](stream)
