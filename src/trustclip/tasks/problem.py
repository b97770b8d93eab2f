"""A problem with a verifiable answer, the unit that every source, trainer and report shares."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One problem with a checkable final answer.

    Args:
      id: unique within its source; joins samples, scores and contamination reports.
      problem: the text shown to the model, without any prompt template.
      answer: the gold final answer as text, e.g. ``"34"`` or ``"\\frac{1}{2}"``; where several
        are right, a JSON list of them, ``'["1", "2"]'``.
      solution: worked text that ends in the answer, for supervised fine-tuning; or None.

    Example:
      >>> Problem(id="p-0", problem="1+2", answer="3").answer
      '3'
    """

    id: str
    problem: str
    answer: str
    solution: str | None = None
