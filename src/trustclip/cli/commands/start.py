"""Commands before training: look at a model's completions, write a first recipe."""

from collections.abc import Sequence
from pathlib import Path

from trustclip.cli.arguments import changes_of
from trustclip.cli.commands.experiments import be_quiet, settings
from trustclip.support.terminal import Terminal, say
from trustclip.train.settings.stages import InitSettings, TrySettings

#: Where a recipe has what ``try MODEL`` calls otherwise.
_IN_RECIPE = {
    "max_tokens": "rl.max_completion_length",
    **{name: f"rl.{name}" for name in ("reward", "temperature", "top_p", "dataset")},
}


def attempt(argv: Sequence[str]) -> None:
    positional, changes = changes_of(argv, TrySettings)
    recipe = None
    if len(positional) == 1 and Path(positional[0]).suffix in (".yaml", ".yml"):
        from trustclip.train.files import load_recipe
        from trustclip.train.shipped import locate

        own = {name: changes.pop(name) for name in ("n", "each") if name in changes}
        changes = {_IN_RECIPE.get(name, name): value for name, value in changes.items()}
        recipe = load_recipe(locate(Path(positional[0])), changes)
        place = {"model": recipe.model, "seed": recipe.seed, "dtype": recipe.dtype}
        options = TrySettings(dataset=recipe.rl.dataset, **place, **own)
    else:
        options = settings(TrySettings, argv, "try")
    be_quiet()
    from trustclip.train.trial import trial

    trial(options, Terminal(), recipe and recipe.rl)
    if recipe and recipe.sft:
        say("This is the model before the recipe's fine-tuning, which comes first in a run.")


def init(argv: Sequence[str]) -> None:
    options = settings(InitSettings, argv, "init")
    be_quiet()
    from trustclip.train.checks import refuse
    from trustclip.train.files import load_recipe
    from trustclip.train.first import next_commands, write_recipe
    from trustclip.train.preflight.dry_run import dry_run

    refuse(options)
    file = write_recipe(options)
    dry_run(load_recipe(file), Terminal(), batch=False)
    say(f"\nwritten to {file}; next:")
    for command in next_commands(options):
        say(f"  {command}")
