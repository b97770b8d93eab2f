"""The command ``try``: a few completions of a model, to look at before training."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from rich.console import Console

from trustclip.findings.start import of_trial
from trustclip.support.terminal import announce, quote, warn
from trustclip.support.text import duration
from trustclip.train.data import check_data, show, training_problems, unlike
from trustclip.train.evaluation.backends.local import Completion, Local, Sampling
from trustclip.train.models import load_model
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import messages, rendered
from trustclip.train.problems.verify import extract_answer
from trustclip.train.rewarding import Rewards
from trustclip.train.settings.stages import RLStage, TrySettings

#: Maximum number of lines and characters shown of a prompt or a completion.
LINES, CHARACTERS = 12, 900


@dataclass(frozen=True)
class Group:
    """The completions of one problem."""

    problem: Problem
    completions: Sequence[Completion]
    answers: Sequence[str | None]  # read from each; None for none
    rewards: Sequence[float | None]  # the total of each; None where none applies


def trial(settings: TrySettings, console: Console, training: RLStage | None = None) -> list[Group]:
    """Run `trustclip try`: sample a few completions, grade and print them.

    ``training`` is the stage of a recipe to look at, in place of ``settings.training``. Data and
    rewards that cannot be used are refused before the model loads.
    """
    stage = training or settings.training
    each = min(settings.each, settings.n)
    problems = training_problems(stage, None, settings.seed)[: -(-settings.n // each)]
    check_data(problems, stage)
    rewards = Rewards(stage, settings.seed)
    try:
        show(console, unlike(settings.model, stage.style))
        announce(console, f"loading {settings.model}")
        model, tokenizer = load_model(settings.model, stage.style, settings.seed, settings.dtype)
        sampling = Sampling(stage.temperature, stage.top_p, stage.max_completion_length)
        prompts = [messages(problem.problem, stage.style) for problem in problems]
        limit = sampling.max_tokens
        announce(console, f"sampling {each * len(problems)} completions of at most {limit} tokens")
        start = time.perf_counter()
        with console.status("") as status:
            tokens = count(1)

            def report_token() -> bool:
                status.update(f"token {next(tokens)} of at most {limit}")
                return False

            backend = Local(model, tokenizer, sampling, each * len(prompts), report_token)
            sampled = backend.generate(prompts, each, settings.seed)
        seconds = time.perf_counter() - start
        groups = [
            _grade(problem, completions, stage, rewards)
            for problem, completions in zip(problems, sampled, strict=True)
        ]
    finally:
        rewards.close()
    _print(groups, stage, tokenizer, console)
    _conclude(groups, stage, _speed(groups, seconds, model), console)
    return groups


def _grade(
    problem: Problem, completions: Sequence[Completion], stage: RLStage, rewards: Rewards
) -> Group:
    texts = [completion.text for completion in completions]
    by_reward = rewards.preview(problem, stage, texts)
    each = [{name: values[i] for name, values in by_reward.items()} for i in range(len(texts))]
    answers = [extract_answer(text, stage.style.extraction) for text in texts]
    return Group(problem, completions, answers, [rewards.total(values) for values in each])


def _print(groups: Sequence[Group], stage: RLStage, tokenizer: Any, console: Console) -> None:
    decides = any(one.reads_answer for one in stage.rewards)
    for number, group in enumerate(groups, start=1):
        gold = f", gold answer {group.problem.answer}" if group.problem.answer else ""
        console.print(f"\nproblem {number} of {len(groups)}{gold}", style="bold", highlight=False)
        _quote(rendered(tokenizer, group.problem.problem, stage.style), console)
        places = zip(group.completions, group.answers, group.rewards, strict=True)
        for place, (completion, answer, reward) in enumerate(places, start=1):
            result = ""
            if decides:  # else a reward of the user's own may read another answer
                result = ", no answer found" if answer is None else f", answer {answer}"
            cut = ", cut off" if completion.truncated else ""
            worth = "no reward" if reward is None else f"reward {reward:g}"
            announce(
                console, f"completion {place}: {worth}{result}, {completion.tokens} tokens{cut}"
            )
            _quote(completion.text, console)


def _quote(text: str, console: Console) -> None:
    """Print a text with a bar before each line, and how much of a long one is left out."""
    excerpt = "\n".join(text[:CHARACTERS].splitlines()[:LINES])
    quote(console, excerpt or "\n")
    if omitted := len(text.rstrip()) - len(excerpt.rstrip()):
        announce(console, f"  ... {omitted:,} more characters")


def _speed(groups: Sequence[Group], seconds: float, model: Any) -> str:
    tokens = sum(completion.tokens for group in groups for completion in group.completions)
    kind = str(model.dtype).removeprefix("torch.")
    return (
        f"{tokens:,} tokens in {duration(seconds)}, {tokens / max(seconds, 1e-9):.0f} a second, on "
        f"{model.device.type} in {kind}, {model.num_parameters() / 1e6:,.4g} M parameters"
    )


def _conclude(groups: Sequence[Group], stage: RLStage, speed: str, console: Console) -> None:
    cut = [completion.truncated for group in groups for completion in group.completions]
    decides = any(one.reads_answer for one in stage.rewards)
    answers = [answer for group in groups for answer in group.answers if decides]
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    mixed = sum(len(set(group.rewards)) > 1 for group in groups)
    console.print()
    mean = f"mean reward {sum(rewards) / len(rewards):.3g}" if rewards else "no reward applies"
    empty = f", {answers.count(None)} without an answer" if decides else ""
    announce(
        console,
        f"{len(cut)} completions of {len(groups)} problems: {mean}; {sum(cut)} cut off at "
        f"{stage.max_completion_length} tokens{empty}; rewards differ within {mixed} of the "
        "problems",
    )
    announce(console, speed)
    for finding in of_trial(cut, list(answers), [list(group.rewards) for group in groups]):
        warn(console, f"warning: {finding.text}")
