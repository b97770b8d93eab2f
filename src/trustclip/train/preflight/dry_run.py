"""A dry run of a recipe: its plan in numbers, a prompt, and its longest batch once."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustclip.constraints.base import Trait
from trustclip.support.lock import world
from trustclip.support.marks import fields_of
from trustclip.support.terminal import announce, quote, warn
from trustclip.train.checks import absent, refuse
from trustclip.train.data import (
    differences,
    few_tests,
    recipe_problems,
    short_enough,
    show,
    tell_overlap,
    test_problems,
    training_data,
    unlike,
)
from trustclip.train.evaluation.measures import Measures
from trustclip.train.models import check_context
from trustclip.train.preflight.longest import longest, model_shape, run_longest
from trustclip.train.problems.problem import Problem
from trustclip.train.problems.prompts import completion, messages, rendered, right_completion
from trustclip.train.rewarding import Rewards
from trustclip.train.services import answers, check_sampling, incapable, no_answer, vllm_server
from trustclip.train.settings.stages import EvalSettings, Recipe, RLSettings, RLStage, SFTSettings


@dataclass(frozen=True)
class Plan:
    """What a recipe will do, by arithmetic alone. Counts are over all processes."""

    updates: int  # of the optimizer
    generations: int  # of samples
    updates_per_generation: float
    prompts: int  # per generation
    completions: int  # per generation
    all_completions: int  # of training, without evaluations
    update_sequences: int  # that one update learns from
    update_prompts: float  # the same in problems, if groups stay together
    passes: float | None  # over the training problems; None where their number is not known
    acts: bool  # whether the constraint can act
    why: str  # the reason, as text
    evaluations: int
    answers: int | None  # sampled by all of them; None where tasks are not known
    checkpoints: int  # written in total
    kept: int  # of them at the end


def plan(
    recipe: Recipe, problems: int | None = None, tests: int | None = None, processes: int = 1
) -> Plan:
    """Compute the numbers of a recipe, without a model.

    ``problems`` is the number of training problems, without those that are too long, ``tests`` that
    of test problems over all tasks.

    Example:
      >>> rl = RLStage(dataset="arithmetic", max_steps=96, per_device_train_batch_size=16,
      ...     gradient_accumulation_steps=1, steps_per_generation=4, num_iterations=1)
      >>> numbers = plan(Recipe(name="tiny", model="tiny", output_dir="runs/tiny", rl=rl), 1024)
      >>> numbers.generations, numbers.prompts, numbers.completions, numbers.passes, numbers.acts
      (24, 8, 64, 0.1875, True)
    """
    rl = recipe.rl
    schedule = rl.schedule
    micro_batches = rl.max_steps * rl.gradient_accumulation_steps
    generations = math.ceil(
        micro_batches / (schedule.steps_per_generation * schedule.num_iterations)
    )
    batch = rl.per_device_train_batch_size * processes
    completions = batch * schedule.steps_per_generation
    prompts = completions // rl.num_generations
    sequences = batch * rl.gradient_accumulation_steps
    evaluation_steps = set()
    if recipe.eval is not None:
        evaluation_steps = {0, rl.max_steps} | _multiples(recipe.eval.every, rl.max_steps)
    checkpoint_steps = _multiples(rl.save_steps, rl.max_steps) | (evaluation_steps - {0})
    checkpoint_steps |= {rl.max_steps} if rl.save_steps else set()
    acts, why = _acts(rl)
    answers = None if tests is None or recipe.eval is None else recipe.eval.k * tests
    return Plan(
        updates=rl.max_steps,
        generations=generations,
        updates_per_generation=schedule.updates_per_generation,
        prompts=prompts,
        completions=completions,
        all_completions=generations * completions,
        update_sequences=sequences,
        update_prompts=sequences / rl.num_generations,
        passes=generations * prompts / problems if problems else None,
        acts=acts,
        why=why,
        evaluations=len(evaluation_steps),
        answers=None if answers is None else answers * len(evaluation_steps),
        checkpoints=len(checkpoint_steps),
        kept=min(len(checkpoint_steps), rl.save_total_limit or len(checkpoint_steps)),
    )


def _acts(rl: RLStage) -> tuple[bool, str]:
    schedule = rl.schedule
    if Trait.ACTS_ON_POLICY in rl.method.traits:
        return True, "it acts at any ratio, also on fresh samples"
    if schedule.inert:
        return False, schedule.explain_inert(rl.method.name)
    updates = schedule.updates_per_generation
    if updates == int(updates):
        return True, f"in {updates - 1:.0f} of the {updates:.0f} updates on each generation"
    return True, f"{updates:g} updates on each generation, not all of them on fresh samples"


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
        problems, tests = _problems(recipe, console)
        config, tokenizer = model_shape(recipe.model, settings.style)
    except ValueError:
        console.print(_plan_table(recipe, plan(recipe, processes=processes)))
        raise
    check_context(config, settings.max_completion_length, recipe.model)
    hardest = longest(problems, tokenizer, settings)
    numbers = plan(recipe, len(problems), tests, processes)
    console.print(_plan_table(recipe, numbers))
    _preview(recipe, problems[0], tokenizer, console)
    for text in _missing(recipe.training):
        console.print(f"cannot run on this machine: {text}", highlight=False, markup=False)
    return run_longest(recipe, console, hardest) if batch else 0


def _missing(settings: RLSettings) -> list[str]:
    """What is missing here; a server that is down now may be up when the run needs it."""
    url = vllm_server(settings)
    problem = ""
    if url is not None:
        problem = incapable(url) if answers(f"{url}/health", healthy=True) else no_answer(url)
    try:
        check_sampling(settings)
    except ValueError as error:
        problem = str(error)
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


def _problems(recipe: Recipe, console: Console) -> tuple[Sequence[Problem], int | None]:
    """Training problems, and the number of test problems."""
    data = recipe_problems(recipe)
    tell_overlap(console, data.overlap)
    show(console, few_tests(data.tests))
    problems: Sequence[Problem] = data.training
    tests = None if recipe.eval is None else sum(map(len, data.tests.values()))
    if recipe.rl.max_prompt_length is not None:
        tokenizer = model_shape(recipe.model, recipe.rl.style)[1]
        problems = short_enough(problems, tokenizer, recipe.rl)
    return problems, tests


def _plan_table(recipe: Recipe, plan: Plan) -> Table:
    tuning = "none"
    if (sft := recipe.sft) is not None:
        epochs = f"{sft.num_train_epochs:g} epochs"
        tuning = f"{sft.max_steps} updates" if sft.max_steps > 0 else epochs
        tuning += f" on {sft.dataset}"
    passes = "" if plan.passes is None else f": {plan.passes:.3g} passes over the problems"
    answers = "" if plan.answers is None else f", {plan.answers:,} completions in total"

    def of(problems: float) -> str:
        return f" of {problems:,g} problem{'s' * (problems != 1)}"

    rows = {
        "model": recipe.model,
        "fine-tuning": tuning,
        "constraint": str(recipe.rl.method),
        "can it act?": ("yes: " if plan.acts else "NO: ") + plan.why,
        "updates": f"{plan.updates:,}, {plan.updates_per_generation:g} per generation",
        "an update": f"{plan.update_sequences:,} completions{of(plan.update_prompts)}",
        "a generation": f"{plan.completions:,} completions{of(plan.prompts)}",
        "total": f"{plan.generations:,} generations, {plan.all_completions:,} completions{passes}",
        "evaluations": f"{plan.evaluations}{answers}",
        "checkpoints": f"{plan.checkpoints} written, {plan.kept} kept",
    }
    table = Table(box=None, pad_edge=False, show_header=False, title=Text(recipe.name))
    table.title_justify = "left"
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
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


def dry_sft(settings: SFTSettings, console: Console) -> int:
    """`trustclip sft ... --dry-run`: number and length of the solutions, updates, an example."""
    from trustclip.train.sft import format_examples, updates

    refuse(settings)
    problems, overlap = training_data(settings, None)
    tell_overlap(console, overlap)
    show(console, unlike(settings.model, settings.style))
    _, tokenizer = model_shape(settings.model, settings.style)
    problems = format_examples(problems, tokenizer, settings)
    texts = [
        rendered(tokenizer, problem.problem, settings.style) + completion(problem, settings.style)
        for problem in problems
    ]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in texts]
    batch = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    steps = updates(settings, len(problems))
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
