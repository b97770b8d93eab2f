"""The rewards of a training run: those that its settings choose, their weights, their records."""

import asyncio
import hashlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trustclip.support.lock import rank
from trustclip.train.data import training_row
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.verify import AnswerReward
from trustclip.train.problems.verify.chosen import (
    CORRECT,
    make_reward,
    read_rewards,
    resolve,
)
from trustclip.train.runs.directory import RunDirectory
from trustclip.train.settings.stages import RLStage

#: Folder of a run directory with the Python files that it has imported.
CODE = "code"


def is_flipped(share: float, seed: int, problem: str, sample: str) -> bool:
    """Whether the reward of a sample is flipped.

    Decided by a hash of the sample's key, the update at which it was drawn and an index, so that it
    does not depend on the order of computation, the rank, or earlier random numbers.

    Example:
      >>> sum(is_flipped(0.1, 0, "p", f"3/{i}") for i in range(10_000)) / 10_000
      0.099
    """
    key = f"{seed}/{problem}/{sample}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") < share * 2.0**64


class NoisyReward:
    """The binary answer reward, inverted for a share ``noise`` of the completions, in [0, 0.5]."""

    def __init__(self, style: Any, noise: float, seed: int, label: str) -> None:
        self._noise, self._seed = noise, seed
        self.__name__ = label
        self._reward = AnswerReward(style=style)

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float]:
        """Rewards of the completions, inverted ones included, in TRL's signature."""
        rewards = self._reward(prompts, completions, **columns)
        # Every rank rewards as many completions: this rank's begin at `first` of the generation.
        first = rank() * len(rewards)
        step = getattr(columns.get("trainer_state"), "global_step", None)
        inverted = [
            self.inverts(step, first + place, identity)
            for place, identity in enumerate(columns.get("id", [""] * len(rewards)))
        ]
        if self._noise and "log_metric" in columns:
            columns["log_metric"]("reward_noise", sum(inverted) / max(len(inverted), 1))
        return [1.0 - r if wrong else r for r, wrong in zip(rewards, inverted, strict=True)]

    def inverts(self, step: int | None, index: int, identity: str) -> bool:
        """Whether the policy gets the opposite of the true reward.

        Of the completion of a problem that was sampled after ``step`` updates and has the number
        ``index`` in its generation, over all ranks.
        """
        return self._noise > 0 and is_flipped(self._noise, self._seed, identity, f"{step}/{index}")

    def close(self) -> None:
        """End the verifier's processes."""
        self._reward.verifier.close()


class Rewards:
    """The reward functions of a training run, in the order in which TRL gets them.

    Raises:
      ValueError: one cannot be imported or made.
    """

    def __init__(self, settings: RLStage, seed: int = 0) -> None:
        style = settings.style.extraction
        self.functions: list[Any] = []
        self.correct: NoisyReward | None = None
        for one in settings.rewards:
            if one.name == CORRECT:
                answer_style = dict(one.arguments).get("style", style)
                self.correct = NoisyReward(answer_style, settings.reward_noise, seed, one.label)
                self.functions.append(self.correct)
            else:
                self.functions.append(make_reward(one, style))
        self.noisy = settings.reward_noise > 0
        self._weights = dict(zip(self.names, settings.reward_weights, strict=True))

    @property
    def names(self) -> list[str]:
        """Labels, under which they are logged."""
        return [function.__name__ for function in self.functions]

    def total(self, values: Mapping[str, float | None]) -> float | None:
        """Weighted sum of one completion's rewards by label; None if none applies.

        One that does not apply is None or NaN.
        """
        numbers = {name: v for name, v in values.items() if v is not None and not math.isnan(v)}
        return sum(self._weights[name] * v for name, v in numbers.items()) if numbers else None

    def preview(
        self, problem: Problem, settings: RLStage, texts: Sequence[str]
    ) -> dict[str, list[float | None]]:
        """Rewards of completions of a problem, by label; tokens are counted as 0."""
        row, count = training_row(problem, settings.style), len(texts)
        columns = {name: [value] * count for name, value in row.items() if name != "prompt"}
        arguments = {
            "prompts": [row["prompt"]] * count,
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
            "completion_ids": [[]] * count,
            "trainer_state": SimpleNamespace(global_step=0, max_steps=settings.max_steps),
            "log_metric": lambda *_: None,
            "log_extra": lambda *_: None,
        }
        rewards = {}
        for name, function in zip(self.names, self.functions, strict=True):
            values = function(**arguments, **columns)
            rewards[name] = asyncio.run(values) if inspect.iscoroutine(values) else values
        return rewards

    def close(self) -> None:
        """End processes, and release what rewards of the user's own hold."""
        for function in self.functions:
            function.close()


def complaints(reward: Any) -> Iterable[str]:
    """Errors of the rewards; the code of the user's own is imported for this."""
    for one in read_rewards(reward):
        try:
            resolve(one) if one.own else make_reward(one)
        except ValueError as error:
            yield str(error)


def keep_code(run: RunDirectory, names: Iterable[str]) -> None:
    """Copy the Python files of these ``file.py:name`` to the run's folder ``code``, once each.

    A file that has changed since is copied beside the first.
    """
    if not run.leads:
        return
    for name in sorted(names):
        file = Path(name.rpartition(":")[0])
        if file.suffix != ".py" or not file.is_file():
            continue
        text, folder = file.read_text(encoding="utf-8"), run.path / CODE
        folder.mkdir(exist_ok=True)
        names = chain([file.name], (f"{file.stem}-{number}.py" for number in count(2)))
        copies = (folder / name for name in names)
        copy = next(c for c in copies if not c.exists() or c.read_text(encoding="utf-8") == text)
        if not copy.exists():
            copy.write_text(text, encoding="utf-8")
