"""The demo: a policy of half a million parameters learns to work problems out, on a laptop CPU.

A primer teaches it the answer format from solutions of two kinds: terse guesses, frequent and
mostly wrong, and worked chains, rare and nearly always right. Reinforcement learning with the
binary reward then finds out which of the two pays, several updates per generation, so that the
constraint has something to do. The held-out problems are answered before and after.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trustclip import stats
from trustclip.method import method
from trustclip.recipes.evaluate import Plan, evaluate, interval_text, outcomes, scores, scores_table
from trustclip.recipes.generation import Local, Sampling
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.rl import reinforce
from trustclip.recipes.settings import PRESETS, DemoSettings, RLSettings, SFTSettings
from trustclip.recipes.sft import fine_tune
from trustclip.recipes.tiny import tiny_model
from trustclip.tasks.arithmetic import Arithmetic

#: Samples per held-out problem.
K = 8
#: Sampling of the evaluation: the policy itself, neither sharpened nor cut.
SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=32)
#: Updates per generation of 256 samples.
UPDATES = 16


def demo(settings: DemoSettings, console: Console) -> RunDirectory:
    """Run `trustclip demo`: prime, evaluate, reinforce, evaluate.

    Raises:
      ValueError: unknown method or hyper-parameter, or a run directory that is taken.
    """
    chosen = method(settings.method, **settings.method_args)
    folder = settings.output_dir or _free(Path(f"runs/demo-{settings.method}-seed{settings.seed}"))
    run = RunDirectory(folder, "demo", settings)
    console.print(f"{chosen}, seed {settings.seed}, run directory {folder}", highlight=False)

    model, tokenizer = tiny_model(settings.seed)
    problems = Arithmetic(operations=settings.operations, seed=settings.seed)
    prime(model, tokenizer, settings.seed, run, console, problems, steps=320)

    held_out = {"arithmetic": problems.test(settings.test_problems)}
    plan = Plan(k=K, style="plain", seed=settings.seed, batch_size=256)
    backend = Local(model, tokenizer, SAMPLING, plan.batch_size)
    before = evaluate(run, console, backend, held_out, plan, "before")
    summary = {**_identity(settings, chosen), "before": _brief(before)}
    run.summarize({**summary, "finished": False})

    training = reinforce(model, tokenizer, problems.train(2048), _rl(settings, run), run, console)
    after = evaluate(
        run, console, backend, held_out, replace(plan, seed=settings.seed + 1), "after"
    )
    summary |= {"after": _brief(after), "training": training, "finished": True}
    summary["difference"] = _difference(before, after)
    run.summarize(summary)
    _conclude(run, console, summary, before, after)
    return run


def prime(
    model: Any,
    tokenizer: Any,
    seed: int,
    run: RunDirectory,
    console: Console,
    problems: Arithmetic | None = None,
    *,
    steps: int = 60,
) -> None:
    """Teach a fresh tiny model the answer format, from mostly terse and mostly wrong solutions.

    Args:
      model: trained in place.
      tokenizer: its tokenizer.
      seed: of problems and order.
      run: gets the metrics.
      console: gets the progress.
      problems: which problems; the default difficulty when None.
      steps: updates of 32 solutions. 320 make a worked chain right 97 times of 100.
    """
    problems = Arithmetic(seed=seed) if problems is None else problems
    base: SFTSettings = PRESETS["sft"]["tiny"]
    settings = replace(
        base,
        seed=seed,
        max_steps=steps,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        logging_steps=8,
    )
    fine_tune(model, tokenizer, problems.primer(2560), settings, run, console)


def _rl(settings: DemoSettings, run: RunDirectory) -> RLSettings:
    base: RLSettings = PRESETS["rl"]["tiny"]
    return replace(
        base,
        output_dir=run.path,
        method=settings.method,
        method_args=settings.method_args,
        seed=settings.seed,
        steps_per_generation=UPDATES,
        max_steps=UPDATES * settings.generations,
        learning_rate=1.5e-4,
    )


def _identity(settings: DemoSettings, chosen: Any) -> dict[str, Any]:
    return {"command": "demo", "method": chosen.to_dict(), "seed": settings.seed}


def _brief(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of a stage and the share of completions that work the problem out."""
    worked = sum("<start_working_out>" in row["response"] for row in rows) / len(rows)
    return {**scores(rows)["average"], "worked_share": worked}


def _difference(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, float]:
    """Paired gain in Mean@8, with its interval."""
    old, new = (outcomes(rows)["arithmetic"] for rows in (before, after))
    return vars(stats.paired_difference(list(new.values()), [old[key] for key in new]))


def _conclude(
    run: RunDirectory,
    console: Console,
    summary: dict[str, Any],
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
) -> None:
    renamed = [
        {**row, "task": stage}
        for stage, rows in (("before", before), ("after", after))
        for row in rows
    ]
    stages = {"tasks": scores(renamed)["tasks"]}
    console.print(scores_table(stages, f"held-out problems, {K} samples each"))
    gain = interval_text(summary["difference"])
    console.print(f"gain in Mean@{K}: {gain} points, paired by problem", highlight=False)


def _free(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, ... that no run has taken."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
