"""Commands that train and evaluate: arguments in, an exit status out."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from trustclip.arguments import changes_of, parse, passthrough


def demo(argv: Sequence[str]) -> int:
    """A small policy learns under a constraint, and a page says how."""
    from trustclip.recipes.settings import DemoSettings

    settings = parse(DemoSettings, argv, "demo")
    _check_method(settings)
    _be_quiet()
    from trustclip.recipes.demo import demo as run

    console = Console()
    done = run(settings, console)
    if done.summary.get("finished"):
        _show(done.path, "A small policy learns", console)
    return 0


def sft(argv: Sequence[str]) -> int:
    """Supervised fine-tuning."""
    from trustclip.recipes.settings import PRESETS, SFTSettings

    settings = parse(SFTSettings, argv, "sft", PRESETS["sft"])
    _be_quiet()
    from trustclip.recipes.sft import sft as run

    run(settings, Console())
    return 0


def rl(argv: Sequence[str]) -> int:
    """Reinforcement learning."""
    from trustclip.recipes.settings import PRESETS, RLSettings

    rest, passed = passthrough(list(argv))
    settings = parse(RLSettings, rest, "rl", PRESETS["rl"])
    settings = dataclasses.replace(settings, trl={**settings.trl, **passed})
    _check_method(settings)
    _be_quiet()
    from trustclip.recipes.rl import rl as run

    run(settings, Console())
    return 0


def evaluate(argv: Sequence[str]) -> int:
    """Evaluation."""
    from trustclip.recipes.settings import PRESETS, EvalSettings

    settings = parse(EvalSettings, argv, "eval", PRESETS["eval"])
    _be_quiet()
    from trustclip.recipes.evaluate import run_evaluation

    run_evaluation(settings, Console())
    return 0


def _check_method(settings: Any) -> None:
    from trustclip.method import method

    method(settings.method, **settings.method_args)


def _be_quiet() -> None:
    # Here torch and transformers are imported: everything the user said has been checked.
    from trustclip.recipes.callbacks import silence_libraries

    silence_libraries()


def _show(folder: Path, title: str, console: Console) -> None:
    from trustclip.report.page import write_page

    page = write_page(folder, title)
    for label, path in (("summary", "summary.json"), ("report", page)):
        console.print(f"{label:>8}: {folder / path}", highlight=False)


RUN_USAGE = """\
usage: trustclip run FILE [--dry-run] [--SECTION.NAME VALUE ...]

Run a recipe (fine-tuning, training, evaluations), or what is left of it: its output_dir tells how
far it came. SIGTERM or Ctrl-C saves and leaves with status 0.

  --dry-run             print the plan, estimate the memory, and run the longest batch once
  --SECTION.NAME VALUE  in place of the file's value, e.g. --rl.learning-rate 1e-5 --seed 1;
                        --method NAME and --method.NAME VALUE stand for the method and its
                        hyper-parameters, --trl.NAME VALUE for any field of TRL's GRPOConfig

What SECTION.NAME may be: trustclip sft --help, trustclip rl --help, trustclip eval --help."""


def run(argv: Sequence[str]) -> int:
    """``trustclip run FILE``: a whole experiment."""
    if not argv or {"-h", "--help"} & set(argv):
        print(RUN_USAGE)
        return 0 if argv else 2
    from trustclip.recipes.files import load_recipe

    rest = [argument for argument in argv if argument != "--dry-run"]
    files, changes = changes_of(rest)
    if len(files) != 1:
        raise ValueError(f"give one recipe file, not {len(files)}; see trustclip run --help.")
    recipe = load_recipe(Path(files[0]), changes)
    console = Console()
    _be_quiet()
    if "--dry-run" in argv:
        from trustclip.recipes.dry_run import dry_run

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
        """Runs at once; 1 on this machine, as many as the scheduler takes elsewhere."""
        on: str = "local"
        """Where runs work: local, slurm (jobs, by submitit) or ray (tasks)."""
        gpus: int | None = None
        """GPUs of a run; 1 when unset. For slurm and ray, as the next two."""
        cpus: int | None = None
        """Processors of a run; 4 when unset."""
        extra: tuple[str, ...] = ()
        """NAME=VALUE: an option of sbatch (account=me), or an amount of a Ray resource."""
        hours: float | None = None
        """Time limit of a Slurm job; 24 when unset. At its end a run saves; call again."""
        partition: str | None = None
        """Partition of a Slurm cluster."""
        dry_run: bool = False
        """Only say what would run."""

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
