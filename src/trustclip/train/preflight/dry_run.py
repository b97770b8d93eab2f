"""A dry run of a recipe: its plan in numbers, a prompt, and its longest batch once."""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip.constraints.base import Trait
from trustclip.support.lock import world
from trustclip.support.marks import fields_of
from trustclip.support.terminal import announce, quote
from trustclip.train.checks import absent
from trustclip.train.data import (
    differences,
    few_tests,
    recipe_problems,
    short_enough,
    show,
    tell_overlap,
)
from trustclip.train.evaluation.measures import Measures
from trustclip.train.models import check_context
from trustclip.train.preflight.longest import longest, model_shape, run_longest
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import messages, rendered, right_completion
from trustclip.train.rewarding import Rewards
from trustclip.train.services import healthy, incapable, no_answer, vllm_server
from trustclip.train.settings.stages import Recipe, RLSettings, RLStage
from trustclip.train.tiny import BUILT_IN


def plan(
    recipe: Recipe, problems: int | None = None, tests: int | None = None, processes: int = 1
) -> dict[str, str]:
    """What a recipe will do, by arithmetic alone: lines by their labels. Counts are over processes.

    ``problems`` is the number of training problems, without those that are too long, ``tests`` that
    of test problems over all tasks.

    Example:
      >>> rl = RLStage(dataset="arithmetic", max_steps=96, per_device_train_batch_size=16,
      ...     gradient_accumulation_steps=1, steps_per_generation=4, num_iterations=1)
      >>> lines = plan(Recipe(name="tiny", model="tiny", output_dir="runs/tiny", rl=rl), 1024)
      >>> lines["a generation"], lines["total"]
      ('64 completions of 8 problems', '24 generations, 1,536 completions: 0.188 passes over the \
problems')
    """
    rl, schedule, group = recipe.rl, recipe.rl.schedule, recipe.rl.num_generations
    of_generation = schedule.steps_per_generation * schedule.num_iterations
    generations = math.ceil(rl.max_steps * rl.gradient_accumulation_steps / of_generation)
    completions = rl.samples * processes
    sequences = rl.per_device_train_batch_size * processes * rl.gradient_accumulation_steps
    total = f"{generations:,} generations, {generations * completions:,} completions"
    if problems:
        passes = generations * (completions // group) / problems
        total += f": {passes:.3g} passes over the problems"
    evaluated: set[int] = set()
    if recipe.eval is not None:
        evaluated = {0, rl.max_steps} | _multiples(recipe.eval.every, rl.max_steps)
    evaluations = f"{len(evaluated)}"
    if recipe.eval is not None and tests is not None:
        evaluations += f", {recipe.eval.k * tests * len(evaluated):,} completions in total"
    saved = _multiples(rl.save_steps, rl.max_steps) | (evaluated - {0})
    saved |= {rl.max_steps} if rl.save_steps else set()
    kept = min(len(saved), rl.save_total_limit or len(saved))

    def of(problems: float) -> str:
        return f" of {problems:,g} problem{'s' * (problems != 1)}"

    return {
        "model": recipe.model,
        "fine-tuning": _tuning(recipe),
        "constraint": str(rl.method),
        "can it act?": schedule.acts(rl.method.name, Trait.ACTS_ON_POLICY in rl.method.traits),
        "updates": f"{rl.max_steps:,}, {schedule.updates_per_generation:g} per generation",
        "an update": f"{sequences:,} completions{of(sequences / group)}",
        "a generation": f"{completions:,} completions{of(completions // group)}",
        "total": total,
        "evaluations": evaluations,
        "checkpoints": f"{len(saved)} written, {kept} kept",
    }


def _tuning(recipe: Recipe) -> str:
    sft = recipe.sft
    if sft is None:
        return "on arithmetic: this model is untrained" if recipe.model in BUILT_IN else "none"
    epochs = f"{sft.num_train_epochs:g} epochs"
    return f"{f'{sft.max_steps} updates' if sft.max_steps > 0 else epochs} on {sft.dataset}"


def _multiples(every: int, last: int) -> set[int]:
    return set(range(every, last + 1, every)) if every else set()


def dry_run(recipe: Recipe, console: Console, *, batch: bool = True) -> int:
    """Run `trustclip run FILE --dry-run`: the plan, a prompt, and the longest batch once.

    Data and model are loaded as the run would load them, the model for the longest batch alone;
    nothing is written.

    Returns:
      0, or 1 when the longest batch does not fit in the device's memory.
    """
    processes = world()
    settings = recipe.rl
    try:
        data = recipe_problems(recipe)
        tell_overlap(console, data.overlap)
        show(console, few_tests(data.tests))
        config, tokenizer = model_shape(recipe.model, settings.style)
        problems = short_enough(data.training, tokenizer, settings)
    except ValueError:
        console.print(_plan_table(recipe.name, plan(recipe, processes=processes)))
        raise
    check_context(config, settings.max_completion_length, recipe.model)
    hardest = longest(problems, tokenizer, settings)
    tests = None if recipe.eval is None else sum(map(len, data.tests.values()))
    console.print(_plan_table(recipe.name, plan(recipe, len(problems), tests, processes)))
    _preview(recipe, problems[0], tokenizer, console)
    for text in _missing(recipe.training):
        console.print(f"cannot run on this machine: {text}", highlight=False, markup=False)
    return run_longest(recipe, console, hardest) if batch else 0


def _missing(settings: RLSettings) -> list[str]:
    """What is missing here; a server that is down now may be up when the run needs it."""
    url = vllm_server(settings)
    problem = ""
    if url is not None:
        problem = incapable(url) if healthy(url) else no_answer(url)
    return [*absent(settings), *filter(None, [problem])]


def _preview(recipe: Recipe, problem: Problem, tokenizer: Any, console: Console) -> None:
    """Show a prompt as the model gets it, and what each reward gives two completions of it."""
    settings = recipe.rl
    show(console, differences(recipe))
    announce(console, f"a prompt, style {settings.style.name}:")
    quote(console, rendered(tokenizer, problem.problem, settings.style))
    texts = {"nothing": "", "its gold answer": right_completion(problem, settings.style)}
    if recipe.eval is not None:
        style = recipe.eval.style
        with contextlib.closing(Measures(recipe.eval.reward, style.extraction)) as measures:
            prompts = [messages(problem.problem, style)] * len(texts)
            measures.of([problem] * len(texts), prompts, list(texts.values()))
    rewards = Rewards(settings, recipe.seed)
    try:
        by_label = rewards.preview(problem, settings, list(texts.values()))
    finally:
        rewards.close()
    for name, values in by_label.items():
        each = (f"{value} for {what}" for what, value in zip(texts, values, strict=True))
        announce(console, f"reward {name}: {', '.join(each)}")


def _plan_table(title: str, lines: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, title=Text(title))
    table.title_justify = "left"
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return table


def dry_rl(settings: RLSettings, console: Console) -> int:
    """`trustclip rl ... --dry-run`: that of a recipe with this stage alone.

    Returns:
      0, or 1 when the longest batch does not fit in the device's memory.
    """
    stage = RLStage(**{name: getattr(settings, name) for name in fields_of(RLStage)})
    place = {n: getattr(settings, n) for n in ("model", "output_dir", "seed", "dtype")}
    return dry_run(Recipe(name=Path(settings.output_dir).name, rl=stage, **place), console)
