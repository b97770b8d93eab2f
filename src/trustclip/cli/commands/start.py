"""Commands before a training: look at a model's completions, write a first recipe."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustclip.cli.arguments import changes_of, settings, takes
from trustclip.settings.stages import InitSettings, TrySettings
from trustclip.support.terminal import Terminal, say

#: Options of ``try`` that are none of the recipe that it is given.
_OWN = ("n", "each")


@takes(TrySettings)
def attempt(argv: Sequence[str]) -> int:
    positional, changes = changes_of(argv, TrySettings)
    training, tuned = None, False
    if len(positional) == 1 and Path(positional[0]).suffix in (".yaml", ".yml"):
        from trustclip.recipes.files import load_recipe
        from trustclip.recipes.shipped import located

        own = {name: changes.pop(name) for name in _OWN if name in changes}
        recipe = load_recipe(located(Path(positional[0])), changes)
        training, tuned = recipe.rl, recipe.sft is not None
        place = {"model": recipe.model, "seed": recipe.seed, "dtype": recipe.dtype}
        chosen = TrySettings(dataset=training.dataset, **place, **own)
    else:
        chosen = settings(TrySettings, argv, "try", first="model")
    from trustclip.recipes.watch.callbacks import silence_libraries

    silence_libraries()
    from trustclip.recipes.trial import trial

    trial(chosen, Terminal(), training)
    if tuned:
        say("This is the model before the recipe's fine-tuning, which comes first in a run.")
    return 0


@takes(InitSettings)
def init(argv: Sequence[str]) -> int:
    chosen = settings(InitSettings, argv, "init", first="file")
    from trustclip.recipes.watch.callbacks import silence_libraries

    silence_libraries()
    from trustclip.recipes.checks import refuse_sources
    from trustclip.recipes.files import load_recipe
    from trustclip.recipes.first import lacking, write_recipe
    from trustclip.recipes.preflight.dry_run import dry_run

    if sys.stdin.isatty():
        chosen = _answered(chosen, lacking)
    absent = [f"--{name}" for name in ("model", "dataset") if getattr(chosen, name) is None]
    if absent:
        raise ValueError(
            f"without a terminal to ask in, give {' and '.join(absent)}, as in: trustclip init "
            "--model smollm2 --dataset word-sums"
        )
    refuse_sources(chosen)
    file = write_recipe(chosen)
    console = Terminal()
    dry_run(load_recipe(file), console, batch=False)
    say(f"\nwritten to {file}; next:")
    say(f"  trustclip try {file}")
    say(f"  trustclip run {file} --dry-run")
    say(f"  trustclip run {file}")
    return 0


def _answered(chosen: InitSettings, lacking: Callable[..., Any]) -> InitSettings:
    if chosen.model is None:
        say("Which model? A folder, a hub id owner/name, a GGUF file, smollm2 or tiny.")
        chosen = replace(chosen, model=_ask("model", "smollm2"))
    if chosen.dataset is None:
        say("Which problems? A file (.jsonl, .json, .csv, .parquet), a hub id, gsm8k, word-sums.")
        chosen = replace(chosen, dataset=_ask("data", "word-sums"))
    parts, columns = lacking(chosen.dataset, chosen.columns)
    for part in parts:
        say(f"Which column holds the {part}? There are: {', '.join(map(str, columns))}.")
        named = {**chosen.columns, part: _ask(f"column of the {part}", "")}
        chosen = replace(chosen, columns=named)
    return chosen


def _ask(what: str, default: str) -> str:
    say(f"{what}{f' [{default}]' if default else ''}: ", end="", flush=True)
    try:
        return input().strip() or default
    except EOFError:
        raise ValueError(f"no answer to: {what}. Give it as an option: see --help.") from None
