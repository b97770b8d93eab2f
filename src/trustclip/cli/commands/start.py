"""Commands before training: look at a model's completions, write a first recipe."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trustclip.cli.arguments import changes_of
from trustclip.cli.commands.experiments import be_quiet, settings
from trustclip.support.terminal import Terminal, say
from trustclip.train.settings.stages import InitSettings, TrySettings

_TRY = """\
examples:
  trustclip try smollm2 --dataset word-sums
  trustclip try Qwen/Qwen3-0.6B --dataset problems.jsonl@[:100] --columns.prompt question --n 16
  trustclip try recipe.yaml --n 16 --each 8"""
_INIT = """\
examples:
  trustclip init
  trustclip init --model smollm2 --dataset word-sums
  trustclip init mine.yaml --model Qwen/Qwen3-0.6B --dataset sums.jsonl --columns.problem text"""

#: Options of ``try`` that no recipe has.
_OWN = ("n", "each")
#: Where a recipe has what ``try MODEL`` calls otherwise.
_IN_RECIPE = {
    "max_tokens": "rl.max_completion_length",
    **{name: f"rl.{name}" for name in ("reward", "temperature", "top_p", "dataset")},
}


def attempt(argv: Sequence[str]) -> int:
    positional, changes = changes_of(argv, TrySettings)
    training, fine_tunes = None, False
    if len(positional) == 1 and Path(positional[0]).suffix in (".yaml", ".yml"):
        from trustclip.train.files import load_recipe
        from trustclip.train.shipped import locate

        own = {name: changes.pop(name) for name in _OWN if name in changes}
        changes = {_IN_RECIPE.get(name, name): value for name, value in changes.items()}
        recipe = load_recipe(locate(Path(positional[0])), changes)
        training, fine_tunes = recipe.rl, recipe.sft is not None
        place = {"model": recipe.model, "seed": recipe.seed, "dtype": recipe.dtype}
        options = TrySettings(dataset=training.dataset, **place, **own)
    else:
        options = settings(TrySettings, argv, "try", _TRY)
    be_quiet()
    from trustclip.train.trial import trial

    trial(options, Terminal(), training)
    if fine_tunes:
        say("This is the model before the recipe's fine-tuning, which comes first in a run.")
    return 0


def init(argv: Sequence[str]) -> int:
    options = settings(InitSettings, argv, "init", _INIT)
    be_quiet()
    from trustclip.train.checks import refuse
    from trustclip.train.files import load_recipe
    from trustclip.train.first import next_commands, write_recipe
    from trustclip.train.preflight.dry_run import dry_run

    if sys.stdin.isatty():
        options = _ask_missing(options)
    missing = [f"--{name}" for name in ("model", "dataset") if getattr(options, name) is None]
    if missing:
        raise ValueError(
            f"without a terminal to ask in, give {' and '.join(missing)}, as in: trustclip init "
            "--model smollm2 --dataset word-sums"
        )
    refuse(options)
    file = write_recipe(options)
    console = Terminal()
    dry_run(load_recipe(file), console, batch=False)
    say(f"\nwritten to {file}; next:")
    for command in next_commands(options):
        say(f"  {command}")
    return 0


def _ask_missing(options: InitSettings) -> InitSettings:
    if options.model is None:
        say("Which model? A folder, a hub id owner/name, a GGUF file, smollm2 or tiny.")
        options = replace(options, model=_ask("model", "smollm2"))
    if options.dataset is None:
        say("Which problems? A file (.jsonl, .json, .csv, .parquet), a hub id, gsm8k, word-sums.")
        options = replace(options, dataset=_ask("data", "word-sums"))
    return options


def _ask(what: str, default: str) -> str:
    say(f"{what} [{default}]: ", end="", flush=True)
    try:
        return input().strip() or default
    except EOFError:
        raise ValueError(f"no answer to: {what}. Give it as an option: see --help.") from None
