"""The demo: a policy of half a million parameters learns to work problems out, on a laptop CPU.

A primer teaches it the answer format from solutions of two kinds: terse guesses, frequent and
mostly wrong, and worked chains, rare and nearly always right. Reinforcement learning with the
binary reward then finds out which of the two pays, several updates per generation, so that the
constraint has something to do. The held-out problems are answered before and after.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trustclip.method import method
from trustclip.recipes.pipeline import run_recipe
from trustclip.recipes.records import RunDirectory
from trustclip.recipes.settings import (
    PRESETS,
    TINY,
    DemoSettings,
    Recipe,
    RecipeEval,
    RLStage,
    SFTStage,
)

#: Updates per generation of 256 samples.
UPDATES = 16
#: Updates of the primer: a worked chain is right 97 times of 100 by then.
PRIMING = 320


def demo(settings: DemoSettings, console: Console) -> RunDirectory:
    """Run `trustclip demo`: prime, evaluate, reinforce, evaluate.

    Raises:
      ValueError: unknown method or hyper-parameter, or a run directory that is taken.
    """
    # A model this small gains nothing from threads, and their number would change the numbers.
    torch.set_num_threads(1)
    chosen = method(settings.method, **settings.method_args)
    folder = settings.output_dir or _free(Path(f"runs/demo-{settings.method}-seed{settings.seed}"))
    console.print(f"{chosen}, seed {settings.seed}, run directory {folder}", highlight=False)
    return run_recipe(recipe_of(settings, folder), console)


def recipe_of(settings: DemoSettings, folder: Path) -> Recipe:
    """The demo as a recipe."""
    priming = _stage(SFTStage, PRESETS["sft"]["tiny"], max_steps=PRIMING)
    training = _stage(
        RLStage,
        PRESETS["rl"]["tiny"],
        method=settings.method,
        method_args=settings.method_args,
        limit=2048,
        steps_per_generation=UPDATES,
        max_steps=UPDATES * settings.generations,
        learning_rate=1.5e-4,
    )
    evaluation = _stage(RecipeEval, PRESETS["eval"]["tiny"], k=8, limit=settings.test_problems)
    return Recipe(
        name="demo",
        model=TINY,
        output_dir=folder,
        seed=settings.seed,
        sft=priming,
        rl=training,
        eval=evaluation,
    )


def _stage(cls: Any, preset: Any, **changes: Any) -> Any:
    """A stage with the values of a preset, where the preset has them, and ``changes``."""
    names = [f.name for f in fields(cls) if hasattr(preset, f.name)]
    return cls(**{name: getattr(preset, name) for name in names} | changes)


def _free(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, ... that no run has taken."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
