"""Generated problems, by the names that take the place of a data set's."""

from typing import Protocol

from trustclip.train.problems.arithmetic import Arithmetic
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.words import DigitSums, LetterCounts, WordSums


class Generator(Protocol):
    """An endless or long list of training problems, and one of test problems apart from it."""

    def __init__(self, *, seed: int = 0) -> None: ...
    def train(self, n: int) -> list[Problem]: ...
    def test(self, n: int) -> list[Problem]: ...


#: A new task is a class in this folder and a line here.
GENERATED: dict[str, type[Generator]] = {
    "arithmetic": Arithmetic,
    "word-sums": WordSums,
    "letter-counts": LetterCounts,
    "digit-sums": DigitSums,
}
#: For fine-tuning alone: chain arithmetic with solutions that are mostly terse and wrong.
PRIMER = "arithmetic-primer"
