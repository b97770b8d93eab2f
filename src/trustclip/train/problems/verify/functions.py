r"""Reward functions: the binary reward, one of form, a length penalty.

Each has TRL's signature ``(prompts, completions, **columns) -> list[float]``, with completions as
text or as a list of messages, and a ``__name__`` under which TRL logs it. `compute_score` is the
binary reward in verl's signature.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

from trustclip.train.problems.verify.extraction import Style, check_style, extract_answer
from trustclip.train.problems.verify.verifier import Verifier

Completion = str | Sequence[dict[str, Any]]


class AnswerReward:
    r"""Binary reward on the final answer: 1.0 if it is right, 0.0 otherwise.

    Args:
      style: where the answer stands; see `extract_answer`.

    Example:
      >>> reward = AnswerReward(style="boxed")
      >>> reward(["1+2", "1+3"], [r"\boxed{3}", r"\boxed{3}"], answer=["3", "4"])
      [1.0, 0.0]
    """

    __name__ = "answer_reward"

    def __init__(self, style: Style = "any") -> None:
        check_style(style)
        self.verifier = Verifier()
        self._style: Style = style

    def __call__(
        self, prompts: Any, completions: Sequence[Completion], *, answer: Sequence[Any], **_: Any
    ) -> list[float]:
        """Score `completions` against the golds in ``answer``; other columns are ignored."""
        return self.verifier.score(answer, [text_of(c) for c in completions], self._style)


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


_process_verifier = functools.cache(Verifier)


def text_of(completion: Completion) -> str:
    """The text of a completion, given as text or as messages, of which the last one counts."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""
