"""Rewards of an evaluation: the one that decides what is right, and others."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from trustclip.train.problems.problem import Problem
from trustclip.train.problems.verify.chosen import RewardError, make_reward, read_rewards
from trustclip.train.problems.verify.extraction import Style


class Measures:
    """Rewards of an evaluation: the first decides what is right, the others are means.

    Made from the setting `reward`, whose "correct" is the verifier's check of the final answer.

    Raises:
      ValueError: one cannot be imported or made.

    Example:
      >>> measures = Measures([{"name": "format", "pattern": "[0-9]+"}])
      >>> measures.verified, measures.of([Problem("p", "1+2", "")], ["?"], ["3"])
      (False, [{'format': 1.0}])
    """

    def __init__(self, setting: Any = "correct", style: Style = "any") -> None:
        first, *others = read_rewards(setting)
        self.verified = first.name == "correct"
        self.first = first.label
        specs = others if self.verified else [first, *others]
        self._functions = {spec.label: make_reward(spec, style) for spec in specs}

    def of(
        self, problems: Sequence[Problem], prompts: Sequence[Any], texts: Sequence[str]
    ) -> list[dict[str, float | None]]:
        """Values by label for each completion, without that of the verifier.

        Raises:
          RewardError: one fails, or the first returns neither 0 nor 1.
        """
        names = dict.fromkeys(name for problem in problems for name in problem.columns)
        columns: dict[str, list[Any]] = {n: [p.columns.get(n) for p in problems] for n in names}
        columns |= {"answer": [p.answer for p in problems], "id": [p.id for p in problems]}
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        rows: list[dict[str, float | None]] = [{} for _ in texts]
        for label, function in self._functions.items():
            values = function(prompts=prompts, completions=completions, **columns)
            values = asyncio.run(values) if inspect.iscoroutine(values) else values
            for row, value in zip(rows, values, strict=True):
                row[label] = value
        if not self.verified:
            self._require_binary(rows)
        return rows

    def close(self) -> None:
        """Release what the functions hold."""
        for function in self._functions.values():
            function.close()

    def _require_binary(self, rows: Sequence[dict[str, float | None]]) -> None:
        for row in rows:
            if row[self.first] not in (0.0, 1.0):
                raise RewardError(
                    f"the reward {self.first!r} gave {row[self.first]}, and the first reward of an "
                    "evaluation says what is right: it must return 0 or 1 for every completion. "
                    "Put `correct`, or a reward that does, before it."
                )
