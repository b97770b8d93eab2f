"""Dry runs of single commands: what `trustclip sft`, `rl` and `eval` would do, without a model."""

import math
from pathlib import Path

from rich.console import Console

from trustclip.evaluation.measures import Measures
from trustclip.recipes.checks import refuse
from trustclip.recipes.preflight.dry_run import dry_run
from trustclip.recipes.preflight.longest import model_shape
from trustclip.recipes.problems import (
    exclude_tests,
    further_tests,
    overlap_text,
    test_problems,
    training_problems,
)
from trustclip.recipes.prompting import show, unlike
from trustclip.settings.marks import fields_of
from trustclip.settings.stages import EvalSettings, Recipe, RLSettings, RLStage, SFTSettings
from trustclip.support.terminal import announce, quote, warn
from trustclip.tasks.prompts import completion, rendered


def dry_rl(settings: RLSettings, console: Console) -> int:
    """`trustclip rl ... --dry-run`: that of a recipe with this stage alone.

    Returns:
      0, or 1 when the longest batch does not fit in the device's memory.
    """
    stage = RLStage(**{name: getattr(settings, name) for name in fields_of(RLStage)})
    place = {n: getattr(settings, n) for n in ("model", "output_dir", "seed", "dtype")}
    return dry_run(Recipe(name=Path(settings.output_dir).name, rl=stage, **place), console)


def dry_sft(settings: SFTSettings, console: Console) -> int:
    """`trustclip sft ... --dry-run`: number and length of the solutions, updates, an example."""
    from trustclip.recipes.sft import format_examples

    refuse(settings)
    loaded = training_problems(settings, None, settings.seed, solutions=True)
    problems, overlap = exclude_tests(loaded, further_tests(settings, None), settings)
    for line in overlap_text({"sft": overlap}):
        announce(console, line)
    show(console, unlike(settings.model, settings.style))
    _, tokenizer = model_shape(settings.model, settings.style)
    problems = format_examples(problems, tokenizer, settings)
    texts = [
        rendered(tokenizer, problem.problem, settings.style) + completion(problem, settings.style)
        for problem in problems
    ]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in texts]
    batch = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    steps = settings.max_steps
    if steps < 0:
        steps = math.ceil(settings.num_train_epochs * math.ceil(len(problems) / batch))
    passes = steps * batch / len(problems)
    announce(
        console, f"sft: {settings.model} on {len(problems)} solutions, in {settings.output_dir}"
    )
    announce(
        console, f"{steps} updates of {batch} solutions: {passes:.3g} passes over the solutions"
    )
    longest = max(lengths)
    announce(console, f"longest solution with its prompt: {longest} tokens")
    if cut := sum(length > settings.max_length for length in lengths):
        warn(
            console,
            f"warning: {cut} of {len(lengths)} are longer than max_length = "
            f"{settings.max_length} and lose their ends, where the answers are.",
        )
    announce(console, f"an example, style {settings.style.name}:")
    quote(console, texts[0])
    return 0


def dry_eval(settings: EvalSettings, console: Console) -> int:
    """`trustclip eval ... --dry-run`: tasks, number of completions, a prompt."""
    refuse(settings)
    tasks = test_problems(settings)
    Measures(settings.reward, settings.style.extraction).close()
    show(console, unlike(settings.model, settings.style))
    count = sum(map(len, tasks.values()))
    announce(console, f"eval: {settings.model} by {settings.backend}, in {settings.output_dir}")
    for task, problems in tasks.items():
        announce(console, f"  {task}: {len(problems)} problems")
    announce(
        console,
        f"{count * settings.k:,} completions, {settings.k} of each of {count} problems, of at most "
        f"{settings.max_tokens:,} tokens",
    )
    if settings.backend != "openai":
        _, tokenizer = model_shape(settings.model, settings.style)
        first = next(problem for problems in tasks.values() for problem in problems)
        announce(console, f"a prompt, style {settings.style.name}:")
        quote(console, rendered(tokenizer, first.problem, settings.style))
    return 0
