"""Whether a run can learn at all, from its first evaluation and its first generation."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trustclip.runs.jsonl import Row
from trustclip.runs.run import Run
from trustclip.runs.text import percent
from trustclip.runs.thresholds import HOPELESS


class Sign(NamedTuple):
    """A reason why a run may learn nothing.

    Args:
      step: update after which it was seen.
      name: of the reason.
      text: the number, and what to do.
    """

    step: int
    name: str
    text: str


def of_evaluation(scores: Mapping[str, Any], limit: object = None) -> Iterator[Sign]:
    """What the first evaluation says: answers that are cut off, or that hold no answer.

    Args:
      scores: averages, with shares ``truncated`` and ``no_answer``.
      limit: its ``max_tokens``.

    Example:
      >>> next(of_evaluation({"truncated": 0.94, "no_answer": 1.0}, 64)).text
      '94 % of the answers of the first evaluation are cut off at 64 tokens: raise max_tokens of \
the evaluation, and max_completion_length of the training.'
    """
    cut, empty = (_share(scores, name) for name in ("truncated", "no_answer"))
    if cut >= HOPELESS:
        yield Sign(
            0,
            "cut_off",
            f"{percent(cut, 0)} % of the answers of the first evaluation are cut off{_at(limit)}: "
            "raise max_tokens of the evaluation, and max_completion_length of the training.",
        )
    elif empty >= HOPELESS:
        yield Sign(
            0,
            "no_answer",
            f"{percent(empty, 0)} % of the completions of the first evaluation hold no answer that "
            "can be read: look at some (samples.jsonl), ask for the format in the prompt, or "
            "fine-tune on it first (sft).",
        )


def of_generation(row: Row, limit: object = None) -> Iterator[Sign]:
    """What the first generation says: completions that are cut off, or groups of equal rewards.

    Args:
      row: the first of a training in ``metrics.jsonl``.
      limit: ``max_completion_length`` of the training.

    Example:
      >>> row = {"step": 1, "completions/clipped_ratio": 0.97, "frac_reward_zero_std": 1.0}
      >>> next(of_generation(row, 64)).text
      '97 % of the completions of the first generation are cut off at 64 tokens, and in 100 % of \
the groups all rewards are equal: raise max_completion_length.'
    """
    step, cut = int(row.get("step", 0)), _share(row, "completions/clipped_ratio")
    equal = _share(row, "frac_reward_zero_std")
    groups = f", and in {percent(equal, 0)} % of the groups all rewards are equal" if equal else ""
    if cut >= HOPELESS:
        yield Sign(
            step,
            "cut_off",
            f"{percent(cut, 0)} % of the completions of the first generation are cut "
            f"off{_at(limit)}{groups}: raise max_completion_length.",
        )
    elif equal >= HOPELESS:
        reward = row.get("reward")
        level = f" (mean {reward:.3g})" if isinstance(reward, int | float) else ""
        yield Sign(
            step,
            "equal_rewards",
            f"in {percent(equal, 0)} % of the groups of the first generation all rewards are "
            f"equal{level}, so they teach nothing: problems that are solved sometimes but not "
            "always, more completions of each, or fine-tuning first (sft).",
        )


def outlook(run: Run) -> list[Sign]:
    """The signs of a run directory, as far as it has got; none of a log or a table."""
    if run.log is not None or run.tabled:
        return []
    found: list[Sign] = []
    if run.initial is not None:
        limit = _setting(run.config.get("eval"), "max_tokens")
        found += of_evaluation(run.initial.scores["average"], limit)
    if run.training:
        stage = run.config.get("rl") if run.command == "run" else run.config
        found += of_generation(run.training[0], _setting(stage, "max_completion_length"))
    return found


def _setting(stage: object, name: str) -> object:
    return stage.get(name) if isinstance(stage, Mapping) else None


def _share(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return value if isinstance(value, int | float) else 0.0


def _at(limit: object) -> str:
    return f" at {limit} tokens" if isinstance(limit, int) else ""
