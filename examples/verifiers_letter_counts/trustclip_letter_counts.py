"""How often a letter stands in a made-up word: trustclip's task and verifier, for verifiers 0.4.

Where prime-rl or verifiers is installed:

    pip install . examples/verifiers_letter_counts    # the id: trustclip-letter-counts
"""

import asyncio
from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from trustclip.train.problems.verify import Verifier
from trustclip.train.problems.words import LetterCounts

__all__ = ["LetterCountTaskset"]

SYSTEM = "Spell the word letter by letter and count. End with the number alone."
#: One for all tasks: whole numbers are compared without a process.
VERIFIER = Verifier()


class LetterCountConfig(vf.TasksetConfig):
    """Which problems: the first of a split, drawn by a seed; the splits share none."""

    split: Literal["train", "test"] = "train"
    problems: int = 1024
    seed: int = 0


class LetterCountData(vf.TaskData):
    """A problem with its gold answer."""

    answer: str


class LetterCount(vf.Task[LetterCountData]):
    """Rewarded with 1 for the right number at the end, and 0 otherwise."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """Whether the last answer is the gold one."""
        score = asyncio.to_thread(VERIFIER.score, [self.data.answer], [trace.last_reply])
        return (await score)[0]


class LetterCountTaskset(vf.Taskset[LetterCount, LetterCountConfig]):
    """The problems of `LetterCounts`."""

    def load(self) -> Iterator[LetterCount]:
        """Yield them, in the order in which they are drawn."""
        c = self.config
        for problem in getattr(LetterCounts(seed=c.seed), c.split)(c.problems):
            own = {"id": problem.id, "prompt": problem.problem, "answer": problem.answer}
            yield LetterCount(LetterCountData(system_prompt=SYSTEM, **own), c.task)
