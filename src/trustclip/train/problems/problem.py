"""A problem with a verifiable answer, the unit that every source, trainer and report shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One problem with a checkable final answer.

    Args:
      id: unique within its source; joins samples, scores and contamination reports.
      problem: the text shown to the model, without any prompt template.
      answer: the gold final answer as text, e.g. ``"34"`` or ``"\\frac{1}{2}"``; where several
        are right, a JSON list of them, ``'["1", "2"]'``; empty where nothing reads it.
      solution: worked text that ends in the answer, for supervised fine-tuning; or None.
      columns: further columns of its row, for reward functions.

    Example:
      >>> Problem(id="p-0", problem="1+2", answer="3").answer
      '3'
    """

    id: str
    problem: str
    answer: str
    solution: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)
