r"""Reward functions: the binary reward, one of form, a notebook's shaped ones, a length penalty.

Each has TRL's signature ``(prompts, completions, **columns) -> list[float]``, with completions as
text or as a list of messages, and a ``__name__`` under which TRL logs it. `compute_score` is the
binary reward in verl's signature.
"""

import functools
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from trustclip.train.problems.verify.equivalence import parse_integer
from trustclip.train.problems.verify.extraction import (
    SPECIAL_TOKEN,
    Style,
    check_style,
    extract_answer,
)
from trustclip.train.problems.verify.verifier import Verifier

Completion = str | Sequence[dict[str, Any]]


class AnswerReward:
    r"""Binary reward on the final answer: 1.0 if it is right, 0.0 otherwise.

    Args:
      verifier: the verifier to use; one with default settings if None.
      style: where the answer stands; see `extract_answer`.
      column: the data set's column with the golds.

    Example:
      >>> reward = AnswerReward(style="boxed")
      >>> reward(["1+2", "1+3"], [r"\boxed{3}", r"\boxed{3}"], answer=["3", "4"])
      [1.0, 0.0]
    """

    __name__ = "answer_reward"

    def __init__(
        self, verifier: Verifier | None = None, style: Style = "any", column: str = "answer"
    ) -> None:
        check_style(style)
        self.verifier = verifier or Verifier()
        self._style: Style = style
        self._column = column

    def __call__(
        self, prompts: Any, completions: Sequence[Completion], **columns: Any
    ) -> list[float]:
        """Score `completions` against ``columns[column]``; other columns are ignored."""
        if self._column not in columns:
            have = sorted(columns)
            raise ValueError(f"no column {self._column!r} with the golds; columns: {have}")
        texts = [text_of(c) for c in completions]
        return self.verifier.score(columns[self._column], texts, self._style)


class SoftOverlong:
    r"""Soft overlong punishment (DAPO, Eq. 13), to be added to another reward.

    $R = 0$ for $|y| \le L - C$, $((L - C) - |y|) / C$ up to $|y| = L$, and $-1$ beyond.

    Args:
      max_length: $L$, tokens, positive.
      cache: $C$, the last tokens of $L$ over which the punishment grows, 1 to `max_length`.

    Raises:
      ValueError: a length out of range.

    Example:
      >>> SoftOverlong(max_length=100, cache=20)(None, None, completion_ids=[[1] * 90, [1] * 80])
      [-0.5, 0.0]

    References:
      Yu et al. 2025, DAPO, https://arxiv.org/abs/2503.14476
    """

    __name__ = "soft_overlong"

    def __init__(self, max_length: int, cache: int) -> None:
        if not 1 <= cache <= max_length:
            raise ValueError(
                f"cache={cache}, max_length={max_length}: 1 <= cache <= max_length is needed"
            )
        self._free = max_length - cache
        self._cache = cache

    def __call__(
        self, prompts: Any, completions: Any, completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float]:
        """Punish each completion by its number of tokens in `completion_ids`."""
        return [
            min(0.0, max(-1.0, (self._free - len(tokens)) / self._cache))
            for tokens in completion_ids
        ]


class FormatReward:
    r"""Reward of the form alone: 1.0 where a completion has it, 0.0 elsewhere.

    Args:
      pattern: regular expression that the whole completion must match, ``.`` matching line breaks
        too; None requires an answer where the style looks for it.
      style: where the answer stands; see `extract_answer`.

    Raises:
      ValueError: not a regular expression, or an unknown style.

    Example:
      >>> FormatReward(r"<think>.*</think>\s*\d+")(None, ["<think>1+2</think> 3", "3"])
      [1.0, 0.0]
      >>> FormatReward(style="boxed")(None, [r"so \boxed{7}", "7"])
      [1.0, 0.0]
    """

    __name__ = "format"

    def __init__(self, pattern: str | None = None, style: Style = "any") -> None:
        check_style(style)
        self._style: Style = style
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)
        except (re.error, TypeError) as error:
            raise ValueError(f"pattern={pattern!r} is not a regular expression: {error}") from None

    def __call__(self, prompts: Any, completions: Sequence[Completion], **_: Any) -> list[float]:
        """Score each completion by its form."""
        texts = [text_of(completion) for completion in completions]
        if self._pattern is None:
            return [float(extract_answer(text, self._style) is not None) for text in texts]
        return [float(self._pattern.fullmatch(text.strip()) is not None) for text in texts]


_TAGS = ("<end_working_out>", "<SOLUTION>", "</SOLUTION>")


def format_exact(prompts: Any, completions: Sequence[Completion], **_: Any) -> list[float]:
    """+3 if the completion is worked, ends its working once and closes with one solution, else 0.

    Example:
      >>> format_exact(None, ["1+2 is 3<end_working_out><SOLUTION>3</SOLUTION>", "3"])
      [3.0, 0.0]
    """
    return [3.0 if _well_formed(text_of(completion)) else 0.0 for completion in completions]


def format_approximate(prompts: Any, completions: Sequence[Completion], **_: Any) -> list[float]:
    """+0.5 for each of the three tags that occurs exactly once, -1 for each that does not.

    Example:
      >>> format_approximate(None, ["3<end_working_out><SOLUTION>3", "3"])
      [0.0, -3.0]
    """
    texts = [text_of(completion) for completion in completions]
    return [sum(0.5 if text.count(tag) == 1 else -1.0 for tag in _TAGS) for text in texts]


def answer_graded(
    prompts: Any, completions: Sequence[Completion], *, answer: Sequence[Any], **_: Any
) -> list[float]:
    """Graded answer check: +5 the gold, +2 within 10 %, +1.5 within 20 %, -2.5 any other number.

    A solution that is no number gets -4.5 and none at all -2. Numbers are read exactly.

    Example:
      >>> texts = [f"<SOLUTION>{a}</SOLUTION>" for a in ("100", "95", "85", "1", "x")] + ["100"]
      >>> answer_graded(None, texts, answer=["100"] * 6)
      [5.0, 2.0, 1.5, -2.5, -4.5, -2.0]
    """
    return [
        _grade(str(gold), extract_answer(text_of(completion), "solution"))
        for gold, completion in zip(answer, completions, strict=True)
    ]


def number_graded(
    prompts: Any, completions: Sequence[Completion], *, answer: Sequence[Any], **_: Any
) -> list[float]:
    """+3.5 if the solution is the gold number, -1.5 if another, 0 if none, -2.5 without a solution.

    Example:
      >>> texts = [f"<SOLUTION>{a}</SOLUTION>" for a in ("1,000", "5", "x")] + ["1000"]
      >>> number_graded(None, texts, answer=["1000"] * 4)
      [3.5, -1.5, 0.0, -2.5]
    """
    rewards = []
    for gold, completion in zip(answer, completions, strict=True):
        text = extract_answer(text_of(completion), "solution")
        value = None if text is None else _number(text)
        if text is None or value is None:
            rewards.append(-2.5 if text is None else 0.0)
        else:
            rewards.append(3.5 if value == _number(str(gold)) else -1.5)
    return rewards


def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    style: Style = "any",
    **_: Any,
) -> float:
    r"""Binary reward in the signature of verl's ``custom_reward_function``.

    Args:
      data_source: ignored: one rule for every data set.
      solution_str: the completion.
      ground_truth: the gold answer.
      extra_info: ignored.
      style: where the answer stands (``reward_kwargs.style``); see `extract_answer`.

    Returns:
      1.0 if the answer is right, 0.0 otherwise.

    Example:
      >>> compute_score("aime", r"so \boxed{034}", "34")
      1.0
    """
    return _process_verifier().score([ground_truth], [solution_str], style)[0]


@functools.cache
def _process_verifier() -> Verifier:
    return Verifier()


def text_of(completion: Completion) -> str:
    """The text of a completion, given as text or as messages, of which the last one counts."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""


def _well_formed(text: str) -> bool:
    text = SPECIAL_TOKEN.split(text, maxsplit=1)[0].strip()
    positions = [text.find(tag) for tag in _TAGS]
    once = all(text.count(tag) == 1 for tag in _TAGS)
    return once and positions == sorted(positions) and text.endswith(_TAGS[-1])


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
