"""Commands that train and evaluate; each takes arguments and returns an exit status."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from trustclip.cli.arguments import changes_of, parse, settings


def demo(argv: Sequence[str]) -> int:
    """Train a small policy under a constraint, and write a page about it."""
    from trustclip.recipes.settings import DemoSettings

    chosen = settings(DemoSettings, argv, "demo")
    _be_quiet()
    from trustclip.recipes.demo import demo as run

    console = Console()
    done = run(chosen, console)
    if done.summary.get("finished"):
        _show(done.path, "A small policy learns", console)
    return 0


def sft(argv: Sequence[str]) -> int:
    """Supervised fine-tuning."""
    from trustclip.recipes.settings import SFTSettings

    chosen = settings(SFTSettings, argv, "sft")
    _be_quiet()
    from trustclip.recipes.sft import sft as run

    run(chosen, Console())
    return 0


def rl(argv: Sequence[str]) -> int:
    """Reinforcement learning."""
    from trustclip.recipes.settings import RLSettings

    chosen = settings(RLSettings, argv, "rl")
    _be_quiet()
    from trustclip.recipes.rl import rl as run

    run(chosen, Console())
    return 0


def evaluate(argv: Sequence[str]) -> int:
    """Evaluation."""
    from trustclip.recipes.settings import EvalSettings

    chosen = settings(EvalSettings, argv, "eval")
    _be_quiet()
    from trustclip.recipes.eval import run_evaluation

    run_evaluation(chosen, Console())
    return 0


def _be_quiet() -> None:
    # Imports torch and transformers, so only once the settings have been checked.
    from trustclip.recipes.watch.callbacks import silence_libraries

    silence_libraries()


def _show(folder: Path, title: str, console: Console) -> None:
    from trustclip.report.page import write_page

    page = write_page(folder, title)
    for label, path in (("summary", "summary.json"), ("report", page)):
        console.print(f"{label:>8}: {folder / path}", highlight=False)


RUN_USAGE = """\
usage: trustclip run FILE [--dry-run] [--SECTION.NAME VALUE ...]

Run a recipe (fine-tuning, training, evaluations), or continue it from what its output_dir holds.
SIGTERM or Ctrl-C saves and exits with status 0.

  --dry-run             print the plan, estimate the memory, and run the longest batch once
  --SECTION.NAME VALUE  override a value of the file, e.g. --rl.learning-rate 1e-5 --seed 1;
                        --method NAME and --method.NAME VALUE set the method and its
                        hyper-parameters, --trl.NAME VALUE sets any field of TRL's GRPOConfig

Options of the sections: trustclip sft --help, trustclip rl --help, trustclip eval --help."""


def run(argv: Sequence[str]) -> int:
    """``trustclip run FILE``: a whole experiment."""
    if not argv or {"-h", "--help"} & set(argv):
        print(RUN_USAGE)
        return 0 if argv else 2
    from trustclip.recipes.files import ALIASES, load_recipe
    from trustclip.recipes.settings import Recipe

    rest = [argument for argument in argv if argument != "--dry-run"]
    files, changes = changes_of(rest, Recipe, ALIASES)
    if len(files) != 1:
        raise ValueError(f"give one recipe file, got {len(files)}; see trustclip run --help.")
    recipe = load_recipe(Path(files[0]), changes)
    console = Console()
    _be_quiet()
    if "--dry-run" in argv:
        from trustclip.recipes.preflight.dry_run import dry_run

        return dry_run(recipe, console)
    from trustclip.recipes.pipeline import run_recipe

    done = run_recipe(recipe, console)
    if done.summary.get("finished"):
        console.print(f"for a page about it: trustclip report {done.path}", highlight=False)
    return 0


def suite(argv: Sequence[str]) -> int:
    """``trustclip suite FILE``: methods x seeds x models."""

    @dataclasses.dataclass
    class Options:
        file: tyro.conf.Positional[Path]
        """YAML file of the suite; see recipes/suites."""
        max_parallel: int | None = None
        """Maximum number of concurrent runs; 1 on this machine, unlimited under a scheduler."""
        on: str = "local"
        """Where runs execute: local, slurm (jobs, by submitit) or ray (tasks)."""
        gpus: int | None = None
        """GPUs per run; 1 when unset (slurm and ray, as the next two)."""
        cpus: int | None = None
        """Processors per run; 4 when unset."""
        extra: tuple[str, ...] = ()
        """NAME=VALUE: an option of sbatch (account=me), or an amount of a Ray resource."""
        hours: float | None = None
        """Time limit of a Slurm job, hours; 24 when unset. At the limit a run saves; call again."""
        partition: str | None = None
        """Partition of a Slurm cluster."""
        dry_run: bool = False
        """List the runs without starting them."""

    options = parse(Options, argv, "suite")
    from trustclip.suite import run_suite

    return run_suite(
        options.file,
        Console(),
        max_parallel=options.max_parallel,
        on=options.on,
        resources={
            name: getattr(options, name) for name in ("gpus", "cpus", "extra", "hours", "partition")
        },
        dry_run=options.dry_run,
    )
