"""Whether a run can learn at all, from its first evaluation and its first generation."""

from collections.abc import Iterator, Mapping
from typing import Any

from trustclip.findings.facts import HOPELESS
from trustclip.findings.finding import Finding
from trustclip.logs.run import Run
from trustclip.support.jsonl import Row
from trustclip.support.text import percent


def of_evaluation(scores: Mapping[str, Any], limit: object = None) -> Iterator[Finding]:
    """What the first evaluation says: answers that are cut off, or that hold no answer.

    Example:
      >>> next(of_evaluation({"truncated": 0.94, "no_answer": 1.0}, 64)).text
      '94 % of the answers of the first evaluation are cut off at 64 tokens. Raise max_tokens of \
the evaluation, and max_completion_length of the training.'
    """
    cut, empty = (_share(scores, name) for name in ("truncated", "no_answer"))
    if cut >= HOPELESS:
        share, at = percent(cut, 0), _at(limit)
        text = f"{share} % of the answers of the first evaluation are cut off{at}."
        advice = "raise max_tokens of the evaluation, and max_completion_length of the training."
        yield Finding("start/cut_off", "fault", text, advice, 0)
    elif empty >= HOPELESS:
        yield Finding(
            "start/no_answer",
            "fault",
            f"{percent(empty, 0)} % of the completions of the first evaluation hold no answer that "
            "can be read.",
            "look at some completions (samples.jsonl), ask for a format of the answer in the "
            "prompt, or fine-tune on that format first (sft).",
            step=0,
        )


def of_generation(row: Row, limit: object = None) -> Iterator[Finding]:
    """What the first generation says: completions that are cut off, or groups of equal rewards.

    Example:
      >>> row = {"step": 1, "completions/clipped_ratio": 0.97, "frac_reward_zero_std": 1.0}
      >>> next(of_generation(row, 64)).sentence
      '97 % of the completions of the first generation are cut off at 64 tokens, and in 100 % of \
the groups all rewards are equal.'
    """
    step, cut = int(row.get("step", 0)), _share(row, "completions/clipped_ratio")
    equal = _share(row, "frac_reward_zero_std")
    groups = f", and in {percent(equal, 0)} % of the groups all rewards are equal" if equal else ""
    if cut >= HOPELESS:
        share, at = percent(cut, 0), f"{_at(limit)}{groups}"
        text = f"{share} % of the completions of the first generation are cut off{at}."
        advice = "raise max_completion_length, so that answers can end."
        yield Finding("start/cut_off", "fault", text, advice, step=step)
    elif equal >= HOPELESS:
        reward = row.get("reward")
        level = f" (mean {reward:.3g})" if isinstance(reward, int | float) else ""
        share = percent(equal, 0)
        yield Finding(
            "start/equal_rewards",
            "fault",
            f"{share} % of the groups of the first generation have equal rewards{level} and teach "
            "nothing.",
            "take problems that are solved sometimes but not always, take more completions of "
            "each, or fine-tune first (sft).",
            step=step,
        )


def of_run(run: Run) -> list[Finding]:
    """The signs of a run directory, as far as it has got; none of a log or a table."""
    if run.log is not None:
        return []
    findings: list[Finding] = []
    if run.initial is not None:
        limit = _setting(run.config.get("eval"), "max_tokens")
        findings += of_evaluation(run.initial.scores["average"], limit)
    if run.training:
        stage = run.config.get("rl") if run.command == "run" else run.config
        findings += of_generation(run.training[0], _setting(stage, "max_completion_length"))
    return findings


def _setting(stage: object, name: str) -> object:
    return stage.get(name) if isinstance(stage, Mapping) else None


def _share(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return value if isinstance(value, int | float) else 0.0


def _at(limit: object) -> str:
    return f" at {limit} tokens" if isinstance(limit, int) else ""


def of_trial(
    cut: list[bool], answers: list[object], groups: list[list[float | None]]
) -> Iterator[Finding]:
    """What a few completions say before anything is trained; nothing if they look as they should.

    Example:
      >>> [finding.text for finding in of_trial([True] * 4, [None] * 4, [[0.0, 0.0], [0.0, 0.0]])]
      ['4 of 4 completions are cut off at the limit. Raise max_tokens (max_completion_length of a \
training), or ask for less.']
    """
    many, empty = len(cut), answers.count(None)
    equal = sum(len(set(group)) == 1 for group in groups if len(group) > 1)
    if sum(cut) > many / 2:
        severity = "fault" if sum(cut) >= HOPELESS * many else "warning"
        text = f"{sum(cut)} of {many} completions are cut off at the limit."
        advice = "raise max_tokens (max_completion_length of a training), or ask for less."
        yield Finding("start/cut_off", severity, text, advice)
    elif empty > many / 2:
        yield Finding(
            "start/no_answer",
            "fault" if empty >= HOPELESS * many else "warning",
            f"{empty} of {many} completions hold no answer that can be read.",
            "ask for the format in the prompt (prompt.system), say where the answer stands "
            "(prompt.answer), or fine-tune on that format first (sft).",
        )
    elif equal and equal == sum(len(group) > 1 for group in groups):
        value = {reward for group in groups for reward in group}
        level = f", all of them {value.pop():g}" if len(value) == 1 and None not in value else ""
        yield Finding(
            "start/equal_rewards",
            "warning",
            f"Within each of {equal} problems the rewards are equal{level}: such groups teach "
            "nothing.",
            "look at more problems (--n 32 --each 8); if these teach nothing either, take problems "
            "that are solved sometimes but not always, or fine-tune first (sft).",
        )
