"""What `doctor` needs the training program for: a job's processes, a recipe's sampler, a server."""

import os
import tempfile
from collections.abc import Sequence

from trustclip.cli.arguments import changes_of, file_of, taken
from trustclip.constraints.base import Method
from trustclip.constraints.sampler import Pairs
from trustclip.engines.limits import Remark
from trustclip.support.settings import Source
from trustclip.support.terminal import say
from trustclip.train.checks import absent, refuse
from trustclip.train.files import build, load_recipe
from trustclip.train.settings.stages import EvalSettings, Recipe, RLStage


def distributed(arguments: Sequence[str]) -> list[Remark] | None:
    """Check the ranks that a launcher started against a recipe, or against given settings.

    Returns:
      Remarks; None on every rank but the first, which reports for all.
    """
    from trustclip.train.preflight.ranks import describe, errors, inspect_ranks

    if arguments and not arguments[0].startswith("-"):
        stage = load_recipe(*file_of(arguments, Recipe, "doctor", "recipe file")).rl
    else:
        _, changes = changes_of(arguments, RLStage)
        stage = build(RLStage, {"dataset": "arithmetic"}, Source(changes=changes))
    world = inspect_ranks(stage.trl)
    if os.environ.get("RANK", "0") != "0":
        return None
    for label, text in describe(world, stage):
        say(f"{label:<14}{text}")
    return [Remark("error", text) for text in (*errors(world, stage), *absent(stage))]


def sampled(arguments: Sequence[str]) -> tuple[Pairs, int, Method | None]:
    """The first completions of a recipe, its greatest length and its method; or of a server."""
    from trustclip.train.preflight.sampler import first_completions

    rest, server = taken(arguments, "--server URL")
    if server is not None:
        return _of_server(server, rest), 0, None
    recipe = load_recipe(*file_of(rest, Recipe, "doctor", "recipe (.yaml) or recording (.jsonl)"))
    return first_completions(recipe), recipe.rl.max_completion_length, recipe.rl.method


def _of_server(url: str, arguments: Sequence[str]) -> Pairs:
    """Completions of a running server, scored by it and by a model here."""
    from trustclip.support.http import check_address
    from trustclip.train.data import test_problems
    from trustclip.train.preflight.sampler import server_pairs
    from trustclip.train.problems.prompts import messages
    from trustclip.train.runs.directory import RunDirectory

    check_address(url)
    rest, served = taken(arguments, "--served NAME")
    _, changes = changes_of(rest, EvalSettings)
    content = {"tasks": "word-sums", "prompt_style": "plain", "limit": 32, "max_tokens": 1}
    with tempfile.TemporaryDirectory() as folder:
        content["output_dir"] = f"{folder}/run"
        settings = build(EvalSettings, content, Source(changes=changes))
        refuse(settings)
        tasks = test_problems(settings, RunDirectory(settings.output_dir, "eval", settings))
    prompts = [messages(one.problem, settings.style) for task in tasks.values() for one in task]
    return server_pairs(url, settings.model, settings.style, prompts, served or "")
