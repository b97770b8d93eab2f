"""Commands that train and evaluate, and those before training; each returns an exit status."""

import dataclasses
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from trustclip.cli.arguments import changes_of, file_of, given, parse, print_help, require, taken
from trustclip.support.marks import Argument
from trustclip.support.settings import Source
from trustclip.support.terminal import Terminal, say
from trustclip.train.settings import stages
from trustclip.train.shipped import locate

T = TypeVar("T")

_PRESET = {
    "--preset NAME": "Begin with the settings of a preset, which options change. With tiny, a "
    "small model and generated problems, the command takes seconds on a CPU."
}
_DRY_RUN = {"--dry-run": "Print the plan, and run the longest batch once."}
#: What a command takes beside its settings.
FLAGS: dict[str, dict[str, str]] = {
    "sft": _PRESET,
    "rl": {**_PRESET, **_DRY_RUN},
    "eval": {**_PRESET, "--grade": "Grade stored answers again: trustclip eval --grade --help."},
    "run": {
        "FILE": "A recipe of yours, or the name of one that comes with trustclip (trustclip "
        "recipes). If its output_dir holds a run, this run is continued.",
        **_DRY_RUN,
        "--SECTION.NAME VALUE": "Override a value of the file, as in --rl.learning-rate 1e-5, "
        "--seed 1, --method clip or --trl.optim sgd. The sections have the options of trustclip "
        "sft, rl and eval.",
        "--output-dir FOLDER": "Run directory. When unset it is the file's, and with another "
        "method or seed a folder beside it, as in runs/tiny-clip-seed1.",
    },
    "resume": {
        "RUN": "The folder of a run, whichever command began it. Its settings are in it.",
        "--max-steps N": "Updates in total, more than the run had. With a constant learning rate "
        "it ends bit for bit as if it had been given them from the start; with another schedule "
        "the command says what differs.",
        "--NAME VALUE": "Change a setting that no result depends on, as in --save-steps 10, or "
        "--rl.save-steps 10 if a recipe began the run.",
    },
}
#: What does the work of each command, given its settings.
_WORK = {
    "demo": "trustclip.train.pipeline:demo",
    "sft": "trustclip.train.sft:sft",
    "rl": "trustclip.train.rl:rl",
    "rl --dry-run": "trustclip.train.preflight.dry_run:dry_rl",
    "eval": "trustclip.train.eval:run_evaluation",
    "run": "trustclip.train.pipeline:run_recipe",
    "run --dry-run": "trustclip.train.preflight.dry_run:dry_run",
    "try": "trustclip.train.trial:trial",
    "init": "trustclip.train.first:init",
}
#: Where a recipe has what ``try MODEL`` calls otherwise.
_IN_RECIPE = {
    "max_tokens": "rl.max_completion_length",
    **{name: f"rl.{name}" for name in ("reward", "temperature", "top_p", "dataset")},
}


def settings(cls: type[T], argv: Sequence[str], command: str) -> T:
    """Parse the settings of a command, which change those of a preset; ``--help`` prints them."""
    rest, name = taken(argv, *_PRESET)
    changes = given(cls, rest, command, FLAGS.get(command, {}))
    from trustclip.train.files import build, preset

    content = {} if name is None else preset(command, name)
    return build(cls, content, Source(changes=changes))


def _work(command: str, options: Any, *more: Any) -> Any:
    # It imports PyTorch, so settings are checked before.
    from trustclip.train.watch.callbacks import silence_libraries

    silence_libraries()
    return pkgutil.resolve_name(_WORK[command])(options, Terminal(), *more)


def attempt(argv: Sequence[str]) -> None:
    positional, changes = changes_of(argv, stages.TrySettings)
    recipe = None
    if len(positional) == 1 and Path(positional[0]).suffix in (".yaml", ".yml"):
        from trustclip.train.files import load_recipe

        own = {name: changes.pop(name) for name in ("n", "each") if name in changes}
        changes = {_IN_RECIPE.get(name, name): value for name, value in changes.items()}
        recipe = load_recipe(locate(Path(positional[0])), changes)
        place = {"model": recipe.model, "seed": recipe.seed, "dtype": recipe.dtype}
        options = stages.TrySettings(dataset=recipe.rl.dataset, **place, **own)
    else:
        options = settings(stages.TrySettings, argv, "try")
    _work("try", options, recipe and recipe.rl)
    if recipe and recipe.sft:
        say("This is the model before the recipe's fine-tuning, which comes first in a run.")


def init(argv: Sequence[str]) -> None:
    _work("init", settings(stages.InitSettings, argv, "init"))


def demo(argv: Sequence[str]) -> None:
    options = settings(stages.DemoSettings, argv, "demo")
    require("transformers", "trl", "matplotlib", "jinja2")  # the last two of the page it ends with
    directory = _work("demo", options)
    if directory.leads and directory.summary.get("finished"):
        from trustclip.report.page import write_page

        page = write_page(directory.path, "A small policy learns")
        for label, name in (("summary", "summary.json"), ("report", page)):
            say(f"{label:>8}: {directory.path / name}")


def sft(argv: Sequence[str]) -> None:
    _work("sft", settings(stages.SFTSettings, argv, "sft"))


def rl(argv: Sequence[str]) -> int | None:
    rest, dry = taken(argv, *_DRY_RUN)
    options = settings(stages.RLSettings, rest, "rl")
    status = _work("rl --dry-run" if dry else "rl", options)
    return status if dry else None


def evaluate(argv: Sequence[str]) -> None:
    rest, graded = taken(argv, "--grade")
    if graded:
        from trustclip.cli.commands.stored import Grade

        return parse(Grade, rest, "eval --grade")()
    _work("eval", settings(stages.EvalSettings, argv, "eval"))


def run(argv: Sequence[str]) -> int | None:
    print_help(argv, None, "run", FLAGS["run"])
    rest, dry = taken(argv, *_DRY_RUN)
    file, changes = file_of(rest, stages.Recipe, "run", "recipe file")
    from trustclip.train.files import load_recipe, with_folder

    file = locate(file)
    recipe = load_recipe(file, with_folder(file, changes))
    if dry:
        return _work("run --dry-run", recipe)
    directory = _work("run", recipe)
    if directory.summary.get("finished"):
        say(f"for a page about it: trustclip report {directory.path}")


def resume(argv: Sequence[str]) -> None:
    print_help(argv, None, "resume", FLAGS["resume"])
    folder, _ = file_of(argv, stages.Recipe, "resume", "run directory")
    from trustclip.train.files import build, of_run

    command, cls, content = of_run(folder)
    _, changes = changes_of(argv, cls)
    _work(command, build(cls, content, Source(f"{folder}/config.yaml", {}, changes)))


@dataclasses.dataclass
class Suite:
    file: Argument[Path]
    """YAML file of the suite, or the name of one that comes with trustclip."""
    max_parallel: int | None = None
    """Maximum number of concurrent runs; 1 on this machine, unlimited under Slurm."""
    on: str = "local"
    """Where runs execute: local, or slurm (jobs, by submitit)."""
    gpus: int | None = None
    """GPUs per job of Slurm; 1 when unset."""
    cpus: int | None = None
    """Processors per job; 4 when unset."""
    extra: tuple[str, ...] = ()
    """NAME=VALUE: an option of sbatch, such as account=me."""
    hours: float | None = None
    """Time limit of a job, hours; 24 when unset. At the limit a run saves; call again."""
    partition: str | None = None
    """Partition of a Slurm cluster."""
    dry_run: bool = False
    """List the runs without starting them."""

    def __call__(self) -> int:
        from trustclip.train.suite import run_suite
        from trustclip.train.suite.launchers.slurm import resources_of

        options = {**vars(self)}
        path = locate(options.pop("file"))
        places = ("gpus", "cpus", "extra", "hours", "partition")
        resources = {name: options.pop(name) for name in places}
        if self.on == "local" and not self.dry_run:
            resources_of(self.on, resources)  # a wrong option is reported before a missing package
            # Without them every run would fail.
            require("transformers", "trl", "datasets", "accelerate", "peft")
        return run_suite(path, Terminal(), resources=resources, **options)
