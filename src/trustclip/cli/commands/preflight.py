"""What `doctor` needs the training program for: a job's processes, a recipe's sampler, a server."""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trustclip.cli.arguments import changes_of, parse
from trustclip.support.settings import Source
from trustclip.support.terminal import say
from trustclip.train.settings.stages import EvalSettings, Recipe, RLStage

if TYPE_CHECKING:
    from trustclip.constraints.base import Method
    from trustclip.constraints.sampler import Pairs
    from trustclip.engines.limits import Remark


_DISTRIBUTED = """\
usage: trustclip doctor --distributed RECIPE [--SECTION.NAME VALUE ...]
       trustclip doctor --distributed [--NAME VALUE ...]

Check the processes of a job, as its launcher started them, against a recipe or against settings of
training: those of trustclip rl --help, such as --method, --num-generations and --use-vllm."""


def distributed(arguments: Sequence[str]) -> "list[Remark] | None":
    """Check the ranks that a launcher started against a recipe, or against given settings.

    Returns:
      Remarks; None on every rank but the first, which reports for all.
    """
    from trustclip.engines.limits import Remark
    from trustclip.train.checks import absent
    from trustclip.train.files import ALIASES, build, load_recipe
    from trustclip.train.preflight.ranks import describe, errors, inspect_ranks

    if {"-h", "--help"} & set(arguments):
        say(_DISTRIBUTED)
        raise SystemExit(0)
    if arguments and not arguments[0].startswith("-"):
        _, changes = changes_of(arguments[1:], Recipe, ALIASES)
        stage = load_recipe(Path(arguments[0]), changes).rl
    else:
        _, changes = changes_of(arguments, RLStage)
        stage = build(RLStage, {"dataset": "arithmetic"}, Source(changes=changes))
    world = inspect_ranks(stage.trl)
    if os.environ.get("RANK", "0") != "0":
        return None
    for label, text in describe(world, stage):
        say(f"{label:<14}{text}")
    return [Remark("error", text) for text in (*errors(world, stage), *absent(stage))]


def sampled(arguments: Sequence[str]) -> "tuple[Pairs, int, Method | None]":
    """The first completions of a recipe, its greatest length and its method; or of a server."""
    if any(part.partition("=")[0] == "--server" for part in arguments):
        return _of_server(arguments), 0, None
    positional, changes = changes_of(arguments, Recipe)
    if len(positional) != 1:
        raise ValueError(
            "trustclip doctor --sampler takes one recipe (.yaml), or one file (.jsonl) with "
            f"`logp_old` and `logp_rollout` of each completion; got {positional or 'none'}."
        )
    from trustclip.train.files import load_recipe
    from trustclip.train.preflight.sampler import first_completions

    recipe = load_recipe(Path(positional[0]), changes)
    return first_completions(recipe), recipe.rl.max_completion_length, recipe.rl.method


@dataclasses.dataclass
class OfServer:
    """A running server against a model: completions that it scored, scored by the model."""

    server: str
    """Address of an OpenAI-compatible server: http://127.0.0.1:8000/v1."""
    model: str
    """Folder or hub id of the model to compare with."""
    served: str = ""
    """The server's name of its model; the first that it has, if empty."""
    tasks: str = "word-sums"
    """Problems to send."""
    prompt_style: str = "plain"
    """Format of the prompt."""
    completions: int = 32
    """Number of completions."""


def _of_server(arguments: Sequence[str]) -> "Pairs":
    """Completions of a running server, scored by it and by a model here."""
    from trustclip.support.http import check_address
    from trustclip.train.preflight.sampler import server_pairs

    options = parse(OfServer, arguments, "doctor --sampler")
    check_address(options.server)
    from trustclip.train.checks import refuse
    from trustclip.train.data import test_problems
    from trustclip.train.problems.prompts import messages
    from trustclip.train.runs.directory import RunDirectory

    with tempfile.TemporaryDirectory() as folder:
        shared = {name: getattr(options, name) for name in ("model", "tasks", "prompt_style")}
        settings = EvalSettings(
            output_dir=Path(folder) / "run", limit=options.completions, max_tokens=1, **shared
        )
        refuse(settings)
        tasks = test_problems(settings, RunDirectory(settings.output_dir, "eval", settings))
    problems = [problem for problems in tasks.values() for problem in problems]
    prompts = [messages(problem.problem, settings.style) for problem in problems]
    return server_pairs(options.server, options.model, settings.style, prompts, options.served)
