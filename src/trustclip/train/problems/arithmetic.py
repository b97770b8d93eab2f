"""Generated chain arithmetic with exact integer answers: the task of the laptop-sized pipeline.

A problem is a walk over the integers ``0..largest``: ``3 + 1 - 2`` visits 3, 4 and 2. Every single
step is easy and an answer at one glance is hard, so working a chain out pays.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from trustclip.train.problems.problem import Problem

Split = Literal["train", "test"]
#: One problem in this many is held out for testing.
TEST_EVERY = 8
#: So many draws in a row without a new problem mean that there are no more.
MOST_REPEATS = 100_000
#: Share of the primer's solutions that are worked out, and of the others that are right guesses.
WORKED, GUESSED = 0.25, 0.1


def split_of(text: str) -> Split:
    """Split that a problem belongs to, a fixed function of its text: about one in eight tests.

    Example:
      >>> split_of("1 + 2"), split_of("1 + 3")
      ('test', 'train')
    """
    digest = hashlib.sha256(text.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_EVERY == 0 else "train"


@dataclass(frozen=True, kw_only=True)
class Generated(ABC):
    """A stream of distinct problems; training and test problems are disjoint for every seed.

    The split of a problem depends on its text alone.
    """

    #: What sets its random numbers apart from those of other generators.
    stream: ClassVar[str] = ""

    seed: int = 0

    def train(self, n: int) -> list[Problem]:
        """First `n` distinct training problems, each with its worked solution.

        A shorter list is a prefix of a longer one.

        Raises:
          ValueError: `n` is above the number of training problems that exist.
        """
        return self._first("train", n)

    def test(self, n: int) -> list[Problem]:
        """First `n` distinct held-out problems; otherwise as `train`."""
        return self._first("test", n)

    @abstractmethod
    def _draw(self, rng: random.Random) -> Problem:
        """Any problem, of either split."""

    def _first(self, split: Split, n: int) -> list[Problem]:
        rng = random.Random(f"{self.stream}{split}-{self.seed}")
        texts: set[str] = set()
        problems: list[Problem] = []
        repeats = 0
        while len(problems) < n:
            problem = self._draw(rng)
            if problem.problem in texts:
                repeats += 1
                if repeats > MOST_REPEATS:
                    raise ValueError(
                        f"n={n} is more than the distinct {split} problems that exist; the "
                        f"generator has found {len(problems)}"
                    )
                continue
            repeats = 0
            texts.add(problem.problem)
            if split_of(problem.problem) == split:
                problems.append(problem)
        return problems


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Generated):
    """Chains of additions and subtractions whose partial results all lie in ``0..largest``.

    Args:
      operations: additions and subtractions per problem, at least 1.
      largest: bound of operands and of partial results, at least 1. A guess at the answer is right
        about once in ``largest + 1`` times.
      seed: determines which problems are drawn, and in which order.

    Example:
      >>> arithmetic = Arithmetic(operations=3)
      >>> problem = arithmetic.train(1)[0]
      >>> problem.problem, problem.answer
      ('3 - 2 + 2 - 1', '2')
      >>> problem.solution
      '<start_working_out>3-2=1+2=3-1=2<end_working_out><SOLUTION>2</SOLUTION>'
    """

    operations: int = 5
    largest: int = 4

    def primer(self, n: int) -> list[Problem]:
        """Training problems whose solutions are mostly terse guesses, wrong on purpose.

        A model fine-tuned on them answers mostly at once and mostly wrongly, and sometimes works a
        problem out: reinforcement learning has something to discover. `answer` is the true one,
        `solution` the text to imitate: worked out in a quarter of the problems, and where it is
        terse, right in a tenth.

        Raises:
          ValueError: `train` does not allow `n`.

        Example:
          >>> problem = Arithmetic(operations=1).primer(1)[0]
          >>> problem.problem, problem.solution
          ('3 - 2', '<SOLUTION>2</SOLUTION>')
        """
        rng = random.Random(f"primer-{self.seed}")
        return [
            problem
            if rng.random() < WORKED
            else replace(problem, solution=terse(self._guess(problem, rng)))
            for problem in self.train(n)
        ]

    def _guess(self, problem: Problem, rng: random.Random) -> int:
        answer = int(problem.answer)
        return answer if rng.random() < GUESSED else _other(answer, self.largest, rng)

    def _draw(self, rng: random.Random) -> Problem:
        values = (rng.randint(0, self.largest),)
        while len(values) <= self.operations:
            values += (_other(values[-1], self.largest, rng),)
        return _problem(values)


def terse(answer: int) -> str:
    """Solution that states an answer at once.

    Example:
      >>> terse(7)
      '<SOLUTION>7</SOLUTION>'
    """
    return f"<SOLUTION>{answer}</SOLUTION>"


def _problem(values: Sequence[int]) -> Problem:
    # With the spaces an operand stands as far from the next one as it does in the worked solution,
    # and a small model soon learns to copy over a constant distance.
    steps = (f" {'+' if a < b else '-'} {abs(b - a)}" for a, b in pairwise(values))
    text = str(values[0]) + "".join(steps)
    # The running total, as on a pocket calculator.
    worked = str(values[0]) + "".join(f"{b - a:+d}={b}" for a, b in pairwise(values))
    return Problem(
        id=f"arithmetic: {text}",
        problem=text,
        answer=str(values[-1]),
        solution=f"<start_working_out>{worked}<end_working_out>{terse(values[-1])}",
    )


def _other(value: int, largest: int, rng: random.Random) -> int:
    """A uniform draw from ``0..largest`` without `value`."""
    draw = rng.randint(0, largest - 1)
    return draw + (draw >= value)
