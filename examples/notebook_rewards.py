"""The shaped rewards of a public notebook, for the form and the answer of a completion.

The answer check stands beside them with weight 0, so that it is recorded and teaches nothing:

    reward:
      - {name: correct, weight: 0}
      - examples/notebook_rewards.py:format_exact
      - examples/notebook_rewards.py:format_approximate
      - examples/notebook_rewards.py:answer_graded
      - examples/notebook_rewards.py:number_graded
"""

from collections.abc import Sequence
from fractions import Fraction

from trustclip.train.problems.verify import extract_answer
from trustclip.train.problems.verify.equivalence import parse_integer
from trustclip.train.problems.verify.extraction import SPECIAL_TOKEN

TAGS = ("<end_working_out>", "<SOLUTION>", "</SOLUTION>")


def format_exact(texts: Sequence[str]) -> list[float]:
    """+3 if the completion is worked, ends its working once and closes with one solution, else 0.

    Example:
      >>> format_exact(["1+2 is 3<end_working_out><SOLUTION>3</SOLUTION>", "3"])
      [3.0, 0.0]
    """
    return [3.0 if _well_formed(text) else 0.0 for text in texts]


def format_approximate(texts: Sequence[str]) -> list[float]:
    """+0.5 for each of the three tags that occurs exactly once, -1 for each that does not.

    Example:
      >>> format_approximate(["3<end_working_out><SOLUTION>3", "3"])
      [0.0, -3.0]
    """
    return [sum(0.5 if text.count(tag) == 1 else -1.0 for tag in TAGS) for text in texts]


def answer_graded(texts: Sequence[str], answer: Sequence[str]) -> list[float]:
    """+5 the gold, +2 within 10 %, +1.5 within 20 %, -2.5 any other number.

    A solution that is no number gets -4.5 and none at all -2. Numbers are read exactly.

    Example:
      >>> texts = [f"<SOLUTION>{a}</SOLUTION>" for a in ("100", "95", "85", "1", "x")] + ["100"]
      >>> answer_graded(texts, answer=["100"] * 6)
      [5.0, 2.0, 1.5, -2.5, -4.5, -2.0]
    """
    return [
        _grade(gold, extract_answer(text, "solution"))
        for gold, text in zip(answer, texts, strict=True)
    ]


def number_graded(texts: Sequence[str], answer: Sequence[str]) -> list[float]:
    """+3.5 if the solution is the gold number, -1.5 if another, 0 if none, -2.5 without a solution.

    Example:
      >>> texts = [f"<SOLUTION>{a}</SOLUTION>" for a in ("1,000", "5", "x")] + ["1000"]
      >>> number_graded(texts, answer=["1000"] * 4)
      [3.5, -1.5, 0.0, -2.5]
    """
    rewards = []
    for gold, text in zip(answer, texts, strict=True):
        solution = extract_answer(text, "solution")
        value = None if solution is None else _number(solution)
        if solution is None or value is None:
            rewards.append(-2.5 if solution is None else 0.0)
        else:
            rewards.append(3.5 if value == _number(gold) else -1.5)
    return rewards


def _well_formed(text: str) -> bool:
    text = SPECIAL_TOKEN.split(text, maxsplit=1)[0].strip()
    positions = [text.find(tag) for tag in TAGS]
    once = all(text.count(tag) == 1 for tag in TAGS)
    return once and positions == sorted(positions) and text.endswith(TAGS[-1])


def _number(text: str) -> Fraction | None:
    integer = parse_integer(text)
    if integer is not None:
        return Fraction(integer)
    text = text.strip().replace("−", "-").replace(",", "")
    try:
        return Fraction(text) if len(text) <= 64 and "e" not in text.lower() else None
    except (ValueError, ZeroDivisionError):
        return None


def _grade(gold: str, answer: str | None) -> float:
    if answer is None:
        return -2.0
    value, target = _number(answer), _number(gold)
    if answer == gold.strip() or (value is not None and value == target):
        return 5.0
    if value is None or target is None:
        return -4.5
    error = abs(value - target) / abs(target) if target else Fraction(1)
    return 2.0 if error <= Fraction(1, 10) else 1.5 if error <= Fraction(1, 5) else -2.5
