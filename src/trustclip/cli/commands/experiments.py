"""Commands that train and evaluate; each takes arguments and returns an exit status."""

import dataclasses
import functools
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from trustclip.cli.arguments import changes_of, parse, require, without
from trustclip.support.marks import Argument
from trustclip.support.terminal import Terminal, say
from trustclip.train.settings.stages import (
    DemoSettings,
    EvalSettings,
    Recipe,
    RLSettings,
    SFTSettings,
)

T = TypeVar("T")

#: Of each command, what follows its options in the help text: how they are used.
EXAMPLES = {
    "try": """\
examples:
  trustclip try smollm2 --dataset word-sums
  trustclip try Qwen/Qwen3-0.6B --dataset problems.jsonl@[:100] --columns.prompt question --n 16
  trustclip try recipe.yaml --n 16 --each 8 --rl.max-completion-length 512""",
    "init": """\
examples:
  trustclip init
  trustclip init --model smollm2 --dataset word-sums
  trustclip init mine.yaml --model Qwen/Qwen3-0.6B --dataset sums.jsonl --columns.problem text""",
    "demo": """\
examples:
  trustclip demo
  trustclip demo --method clip_higher --method.high 0.3 --seed 3""",
    "sft": """\
--preset tiny sets everything for a small model and generated problems: seconds on a CPU.

examples:
  trustclip sft --preset tiny
  trustclip sft --model Qwen/Qwen3-1.7B --dataset solved.jsonl --output-dir runs/sft""",
    "rl": """\
--preset tiny sets everything for a small model and generated problems, seconds on a CPU;
--dry-run prints the plan and runs the longest batch once;
--method.NAME VALUE sets a hyper-parameter of the method (trustclip methods lists both), and
--trl.NAME VALUE any other field of TRL's GRPOConfig.

examples:
  trustclip rl --preset tiny --method clip --method.epsilon 0.1
  trustclip rl --model Qwen/Qwen3-1.7B --dataset problems.jsonl --output-dir runs/rl
  trustclip rl ... --reward rewards.py:polite --columns.prompt question""",
    "eval": """\
--preset tiny sets everything for a small model and generated problems, seconds on a CPU.

--grade RUN|FILE [--style STYLE] [--out FILE] grades stored answers again instead: those of a
run's samples.jsonl, or of a CSV file with the columns answer and gold.

examples:
  trustclip eval --preset tiny
  trustclip eval --model runs/rl/final --tasks amc23,aime24 --output-dir runs/eval
  trustclip compare runs/eval runs/eval-other""",
}


def settings(cls: type[T], argv: Sequence[str], command: str) -> T:
    """Parse the settings of an experiment command; ``--help`` prints the options and exits.

    Beside options by name it takes ``--preset NAME``, ``--method.NAME VALUE`` for a hyper-parameter
    and ``--trl.NAME VALUE`` for a field of TRL.
    """
    from trustclip.train.files import build, preset

    examples, presets = EXAMPLES.get(command, ""), functools.partial(preset, command)
    return parse(cls, argv, command, presets=presets, make=build, examples=examples)


#: What does the work of each command, given its settings.
_WORK = {
    "demo": "trustclip.train.pipeline:demo",
    "sft": "trustclip.train.sft:sft",
    "rl": "trustclip.train.rl:rl",
    "rl --dry-run": "trustclip.train.preflight.dry_run:dry_rl",
    "eval": "trustclip.train.eval:run_evaluation",
    "run": "trustclip.train.pipeline:run_recipe",
    "run --dry-run": "trustclip.train.preflight.dry_run:dry_run",
}


def be_quiet() -> None:
    """Silence the libraries' bars; it imports PyTorch, so only once settings have been checked."""
    from trustclip.train.watch.callbacks import silence_libraries

    silence_libraries()


def _work(command: str, options: Any) -> Any:
    be_quiet()
    return pkgutil.resolve_name(_WORK[command])(options, Terminal())


def demo(argv: Sequence[str]) -> None:
    options = settings(DemoSettings, argv, "demo")
    require("transformers", "trl", "matplotlib", "jinja2")  # the last two of the page it ends with
    directory = _work("demo", options)
    if directory.leads and directory.summary.get("finished"):
        from trustclip.report.page import write_page

        page = write_page(directory.path, "A small policy learns")
        for label, name in (("summary", "summary.json"), ("report", page)):
            say(f"{label:>8}: {directory.path / name}")


def sft(argv: Sequence[str]) -> None:
    _work("sft", settings(SFTSettings, argv, "sft"))


def rl(argv: Sequence[str]) -> int | None:
    rest, dry = without(argv, "--dry-run")
    options = settings(RLSettings, rest, "rl")
    if dry:
        return _work("rl --dry-run", options)
    _work("rl", options)


def evaluate(argv: Sequence[str]) -> None:
    rest, graded = without(argv, "--grade")
    if graded:
        from trustclip.cli.commands.stored import Grade

        parse(Grade, rest, "eval --grade")()
    else:
        _work("eval", settings(EvalSettings, argv, "eval"))


RUN_USAGE = """\
usage: trustclip run FILE [--dry-run] [--SECTION.NAME VALUE ...]

Run a recipe (fine-tuning, training, evaluations), or continue the one in its output_dir.
FILE is yours, or the name of one that comes with trustclip: trustclip recipes.
SIGTERM or Ctrl-C saves and exits with status 0.

  --dry-run             print the plan, and run the longest batch once
  --SECTION.NAME VALUE  override a value of the file, e.g. --rl.learning-rate 1e-5 --seed 1;
                        --method NAME and --method.NAME VALUE set the method and its
                        hyper-parameters, --trl.NAME VALUE sets any field of TRL's GRPOConfig
  --output-dir FOLDER   run directory: the file's output_dir when unset, and with another
                        method or seed a folder beside it, as in runs/tiny-clip-seed1

Options of the sections: trustclip sft --help, trustclip rl --help, trustclip eval --help."""


def run(argv: Sequence[str]) -> int | None:
    if not argv or {"-h", "--help"} & set(argv):
        say(RUN_USAGE)
        return 0 if argv else 2
    from trustclip.train.files import ALIASES, load_recipe, with_folder
    from trustclip.train.shipped import locate

    rest, dry = without(argv, "--dry-run")
    files, changes = changes_of(rest, Recipe, ALIASES)
    if len(files) != 1:
        raise ValueError(f"give one recipe file, got {len(files)}; see trustclip run --help.")
    file = locate(Path(files[0]))
    recipe = load_recipe(file, with_folder(file, changes))
    if dry:
        return _work("run --dry-run", recipe)
    directory = _work("run", recipe)
    if directory.summary.get("finished"):
        say(f"for a page about it: trustclip report {directory.path}")


RESUME_USAGE = """\
usage: trustclip resume RUN [--max-steps N] [--NAME VALUE ...]

Continue a run with the settings in its folder, whichever command began it. A finished run can
get more updates: with a constant learning rate it ends bit for bit as if it had been given them
from the start; with another schedule the command says what differs.

  --max-steps N  updates in total, more than the run had
  --NAME VALUE   a setting that no result depends on, e.g. --save-steps 10, or --rl.save-steps 10 if
                 a recipe began the run"""


def resume(argv: Sequence[str]) -> int | None:
    if not argv or {"-h", "--help"} & set(argv):
        say(RESUME_USAGE)
        return 0 if argv else 2
    from trustclip.support.settings import Source
    from trustclip.train.files import ALIASES, build, of_run

    folders, _ = changes_of(argv, Recipe, ALIASES)
    if len(folders) != 1:
        raise ValueError(
            f"give one run directory, got {len(folders)}; see trustclip resume --help."
        )
    command, cls, content = of_run(Path(folders[0]))
    _, changes = changes_of(argv, cls, ALIASES if command == "run" else {})
    options = build(cls, content, Source(f"{folders[0]}/config.yaml", {}, changes))
    _work(command, options)


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
        from trustclip.train.shipped import locate
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
