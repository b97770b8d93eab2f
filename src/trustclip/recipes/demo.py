"""The demo: a policy of half a million parameters learns to reason step by step, on a laptop CPU.

A primer teaches it the answer format from solutions of two kinds: terse guesses, frequent and
mostly wrong, and worked chains, rare and nearly always right. Reinforcement learning with the
binary reward then favours the kind that pays, with several updates per generation, so that the
constraint can act. Held-out problems are evaluated before and after.
"""

from pathlib import Path

import torch
from rich.console import Console

from trustclip.durable.handover import by_first
from trustclip.durable.lock import only_process
from trustclip.recipes.files import demo_recipe
from trustclip.recipes.pipeline import run_recipe
from trustclip.runs.directory import RunDirectory
from trustclip.settings.stages import DemoSettings


def demo(settings: DemoSettings, console: Console) -> RunDirectory:
    """Run `trustclip demo`: prime, evaluate, reinforce, evaluate."""
    # A model this small gains nothing from threads, and their number would change the numbers.
    torch.set_num_threads(1)
    method = settings.method
    default = Path(f"runs/demo-{method.name}-seed{settings.seed}")
    folder = settings.output_dir or Path(by_first(lambda: str(_free_folder(default, settings))))
    console.print(f"{method}, seed {settings.seed}, run directory {folder}", highlight=False)
    return run_recipe(demo_recipe(settings, folder), console)


def _free_folder(path: Path, settings: DemoSettings) -> Path:
    """The first of ``path``, ``path-2``, ... that is free, or holds this very demo, unfinished."""
    number, candidate = 1, path
    while candidate.exists() and not _is_stopped(candidate, settings):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _is_stopped(folder: Path, settings: DemoSettings) -> bool:
    try:
        with only_process(folder):
            return RunDirectory.stopped(folder, "run", demo_recipe(settings, folder))
    except (ValueError, OSError):  # in use, damaged, or no folder of a run
        return False
