"""The command ``init``: a first recipe from a model and data, with comments."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip.support.consent import names_in
from trustclip.support.jsonl import plain
from trustclip.support.terminal import announce
from trustclip.support.text import one_line
from trustclip.train.checks import refuse
from trustclip.train.data import check_data, training_problems
from trustclip.train.evaluation.measures import Measures
from trustclip.train.files import load_recipe
from trustclip.train.models import load_tokenizer
from trustclip.train.preflight.dry_run import dry_run
from trustclip.train.problems.files import format_of
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import completion, messages, right_completion, tokens_of
from trustclip.train.problems.verify.chosen import CORRECT, RewardError
from trustclip.train.settings.stages import InitSettings, RLStage

#: So many problems are measured; without solutions, a completion has the second length.
SAMPLE, LENGTH = 200, 256
#: Completions of each problem, and of a micro-batch.
GROUP = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data, from which the numbers of a recipe follow."""

    problems: int  # number to train on
    prompt: int  # longest prompt measured, tokens
    answer: int  # longest solution measured, tokens; 0 unless all have one

    @property
    def completion(self) -> int:
        """Room for a completion: twice the longest solution, a multiple of 8."""
        return -(-2 * self.answer // 8) * 8 or LENGTH


def init(settings: InitSettings, console: Console) -> None:
    """Run `trustclip init`: write a recipe, and print its dry run and the commands that follow.

    The data are read, and no model is loaded.
    """
    refuse(settings)
    if settings.file.exists():
        raise ValueError(f"{settings.file} exists; name another file: trustclip init FILE.")
    if settings.file.suffix not in (".yaml", ".yml"):
        raise ValueError(f"a recipe's name ends with .yaml or .yml, got {settings.file}.")
    data, tests = sources(settings)
    stage = settings.training
    problems = training_problems(replace(stage, dataset=data), None, settings.seed)
    check_data(problems, stage)
    tokenizer = load_tokenizer(settings.model, stage.style)
    evaluation = _evaluation(settings, tests, problems[0])
    text = recipe_text(settings, data, evaluation, measure(problems, tokenizer, stage))
    settings.file.write_text(text, encoding="utf-8")
    dry_run(load_recipe(settings.file), console, batch=False)
    commands = (f"\n  {command}" for command in next_commands(settings))
    announce(console, f"\nwritten to {settings.file}; next:{''.join(commands)}")


def sources(settings: InitSettings) -> tuple[str, str | None]:
    """Sources of training and test problems; no tests where none are named.

    Example:
      >>> sources(InitSettings(dataset="sums.jsonl"))
      ('sums.jsonl@[:90%]', 'sums.jsonl@[90%:]')
      >>> sources(InitSettings(dataset="gsm8k")), sources(InitSettings(dataset="a.csv@[:9]"))
      (('gsm8k', 'gsm8k'), ('a.csv@[:9]', None))
    """
    data = settings.dataset
    if settings.tests is not None or "@" in data:
        return data, settings.tests
    if format_of(Path(data)):
        return f"{data}@[:90%]", f"{data}@[90%:]"
    return data, data


def next_commands(settings: InitSettings) -> list[str]:
    """The commands that follow, as they are typed: those that import code say that they may.

    Example:
      >>> next_commands(InitSettings(reward="rewards.py:right"))[0]
      'trustclip try recipe.yaml --allow-code'
    """
    file = shlex.quote(str(settings.file))
    own_code = names_in([plain(settings.reward), _method_spec(settings.method)])
    allow = " --allow-code" if own_code else ""
    return [
        f"trustclip {part}{allow}"
        for part in (f"try {file}", f"run {file} --dry-run", f"run {file}")
    ]


def _evaluation(settings: InitSettings, tests: str | None, problem: Problem) -> dict[str, Any]:
    """Test problems and the reward that says what is right: the one of the training if it can.

    A reward that gives other numbers than 0 and 1 stands behind the answer check, and its mean is
    reported. No evaluation without test problems, or without answers to check.
    """
    if tests is None:
        return {"why": "No test problems were named"}
    style, reward = settings.training.style, plain(settings.reward)
    measures = Measures(reward, style.extraction)
    try:
        texts = ["", right_completion(problem, style)]
        measures.of([problem] * 2, [messages(problem.problem, style)] * 2, texts)
    except RewardError:
        if not problem.answer:
            return {"why": "The reward gives other numbers than 0 and 1"}
        reward = [CORRECT, *(reward if isinstance(reward, list) else [reward])]
    finally:
        measures.close()
    return {"tests": tests, "reward": reward}


def measure(problems: Sequence[Problem], tokenizer: Any, stage: RLStage) -> Sizes:
    """Numbers and lengths of problems, by a model's own tokens."""
    sample = problems[:SAMPLE]
    solved = sample if all(problem.solution for problem in problems) else []
    texts = [completion(problem, stage.style) for problem in solved]
    return Sizes(
        len(problems),
        max(tokens_of(tokenizer, problem, stage.style) for problem in sample),
        max((len(tokenizer(text)["input_ids"]) + 1 for text in texts), default=0),
    )


def recipe_text(
    settings: InitSettings, data: str, evaluation: Mapping[str, Any], sizes: Sizes
) -> str:
    """The recipe, with comments; ``evaluation`` holds tests and reward, or why there is none."""
    name = settings.file.stem
    prompt = _prompt_lines(settings)
    notes = ("a few completions, before anything is trained", "the plan, the prompt, the memory",
             "all of it; the same command continues after a stop")  # fmt: skip
    typed = next_commands(settings)
    width = max(map(len, typed))
    commands = "\n".join(f"#   {c:<{width}}   {note}" for c, note in zip(typed, notes, strict=True))
    parts = [_HEAD.format(
        model=one_line(settings.model), data=one_line(data), commands=commands,
        name=_yaml(name), model_yaml=_yaml(settings.model),
        output=_yaml(f"runs/{name}"), seed=settings.seed,
    )]  # fmt: skip
    steps = min(GROUP, sizes.problems)
    most = settings.limit or inf  # problems
    if settings.sft and sizes.answer:
        length = -(-(sizes.prompt + sizes.answer) // 8) * 8
        few = min(256, most)
        parts.append(_SFT.format(data=_yaml(data), prompt=prompt, length=length, limit=few))
    numbers = {
        "length": sizes.completion,
        "why": "twice the longest solution" if sizes.answer else "raise it if answers are cut off",
        "group": GROUP,
        "steps": steps,
        "samples": steps * GROUP,
        "updates": 2 * steps,
        "total": 16 * steps,
    }
    spec = {"method": _yaml(_method_spec(settings.method)), "reward": _yaml(plain(settings.reward))}
    limit = f"  limit: {settings.limit}\n" if settings.limit else ""
    parts.append(_RL.format(data=_yaml(data), prompt=prompt, limit=limit, **spec, **numbers))
    if "why" in evaluation:
        parts.append(f"# {evaluation['why']}: with an eval section, scores are measured.\n")
    else:
        values = {name: _yaml(value) for name, value in evaluation.items()}
        few = min(64, most)
        parts.append(_EVAL.format(**values, prompt=prompt, length=sizes.completion, limit=few))
    return "\n".join(parts)


def _prompt_lines(settings: InitSettings) -> str:
    """The lines of a section about columns and prompts."""
    prompt = {k: v for k, v in vars(settings.training.prompt).items() if v is not None}
    lines = [f"  prompt_style: {settings.prompt_style}"]
    lines += [f"  prompt: {_yaml(prompt)}"] if prompt else []
    lines += [f"  columns: {_yaml(dict(settings.columns))}"] if settings.columns else []
    if settings.max_bad_rows != InitSettings.max_bad_rows:
        lines.append(f"  max_bad_rows: {settings.max_bad_rows}")
    return "\n".join(lines)


def _method_spec(method: Any) -> dict[str, Any]:
    """A method's name, its first hyper-parameter, and those others that are no default."""
    cls, whole = type(method), enumerate(plain(method).items())
    return {
        name: value
        for place, (name, value) in whole
        if place < 2 or getattr(cls, name, None) != getattr(method, name)
    }


def _yaml(value: Any) -> str:
    """A value in one line of YAML, of which JSON is a part."""
    return json.dumps(value, ensure_ascii=False)


_HEAD = """\
# {model} learns {data}. Written by trustclip init; every value may be changed, and
# `trustclip rl --help` lists all settings. Editors complete this file by the schema that
# `trustclip recipes --schema recipe` prints.
#
{commands}
name: {name}
model: {model_yaml}
output_dir: {output}
seed: {seed}
"""

_SFT = """\
sft:                             # a few worked solutions first, which teach the form of an answer
  dataset: {data}
  limit: {limit}
{prompt}
  max_steps: 32
  per_device_train_batch_size: 8
  learning_rate: 5.0e-4
  lr_scheduler_type: constant
  warmup_steps: 0
  lora_r: 16
  max_length: {length}
"""

_RL = """\
rl:
  dataset: {data}
{limit}{prompt}
  reward: {reward}
  method: {method}   # the constraint: trustclip methods
  max_completion_length: {length}      # tokens: {why}
  num_generations: {group}             # completions of each problem
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 1
  steps_per_generation: {steps}        # {samples} completions a generation, each used twice, in
  num_iterations: 2              # {updates} updates: the ratio leaves 1, and the constraint can act
  max_steps: {total}
  learning_rate: 5.0e-5
  lr_scheduler_type: constant
  warmup_steps: 0
  lora_r: 16
  save_steps: {total}
"""

_EVAL = """\
eval:                            # before and after the training
  tasks: {tests}
{prompt}
  reward: {reward}
  k: 4                           # answers to each problem
  temperature: 1.0
  top_p: 1.0
  max_tokens: {length}
  limit: {limit}
"""
