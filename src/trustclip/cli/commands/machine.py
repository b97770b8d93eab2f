"""Commands that check the machine and its installation."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from trustclip.cli.arguments import parse, reads, split_option, takes
from trustclip.support.marks import Argument, Metavar
from trustclip.support.terminal import say

if TYPE_CHECKING:
    from trustclip.constraints.base import Method
    from trustclip.constraints.sampler import Pairs
    from trustclip.constraints.schedule import Schedule
    from trustclip.engines.remarks import Remark


@dataclasses.dataclass
class Completion:
    """Print a script with which a shell completes commands, options and their values.

    bash: trustclip completion bash > ~/.local/share/bash-completion/completions/trustclip

    zsh: trustclip completion zsh > ~/.zfunc/_trustclip, where ~/.zshrc has "fpath+=~/.zfunc"
    before compinit

    fish: trustclip completion fish > ~/.config/fish/completions/trustclip.fish
    """

    shell: Argument[Literal["bash", "zsh", "fish", "tcsh", "powershell"]]
    """The shell that you type in."""


@reads(Completion)
def completion(options: Completion) -> int:
    from trustclip.cli.completion import script

    say(script(options.shell), end="")
    return 0


@dataclasses.dataclass
class Schema:
    """Print the JSON Schema of recipes or of suites, made from the classes that check them.

    An editor reads it from the first line of a file: # yaml-language-server: $schema=PATH. The
    files of trustclip recipes and trustclip init have that line.
    """

    kind: Argument[Literal["recipe", "suite"]] = "recipe"
    """The kind of file."""


@reads(Schema)
def schema(options: Schema) -> int:
    from trustclip.cli.schema import text

    say(text(options.kind), end="")
    return 0


@dataclasses.dataclass
class Doctor:
    """Versions, devices, and whether a schedule lets a constraint act; or one of three checks:
    --verl, --distributed, --sampler."""

    num_iterations: int = 1
    """Passes over a generation (TRL's default)."""
    steps_per_generation: int | None = None
    """Micro-batches per generation; gradient-accumulation-steps when unset (TRL's default)."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per update."""
    method: str = "atr"
    """Name of the constraint."""
    verl: Annotated[tuple[str, ...], Metavar("ARGUMENT")] = ()
    """Check a configuration of verl, given as verl takes it: the arguments of its trainer."""
    distributed: Annotated[tuple[str, ...], Metavar("RECIPE")] = ()
    """Check the processes of a job, started by the launcher that will train, against a recipe or
    against options: trustclip doctor --distributed --help."""
    sampler: Annotated[tuple[str, ...], Metavar("RECIPE|FILE.jsonl")] = ()
    """Compare the sampler with the trainer on the first completions of a recipe, or on recorded
    ones; a running server with a model: trustclip doctor --sampler --server URL --model MODEL.
    --length N estimates the damage at N tokens."""


@takes(Doctor)
def doctor(argv: Sequence[str]) -> int:
    if "--verl" in argv:
        return _verl(argv[list(argv).index("--verl") + 1 :])
    if "--sampler" in argv:
        return _sampler([part for part in argv if part != "--sampler"])
    if "--distributed" in argv:
        return _distributed([part for part in argv if part != "--distributed"])
    options = parse(Doctor, argv, "doctor")
    import torch

    from trustclip.constraints.schedule import Schedule
    from trustclip.train.runs.directory import environment

    facts = environment()
    for name, version in facts["versions"].items():
        say(f"{name:<14}{version}")
    say(f"{'platform':<14}{facts['platform']}")
    say(f"{'processor':<14}{facts['processor']}")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    say(f"{'devices':<14}{', '.join(devices) or 'CPU only'} ({facts['processors']} processors)")
    schedule = Schedule(
        options.steps_per_generation or options.gradient_accumulation_steps,
        options.num_iterations,
        options.gradient_accumulation_steps,
    )
    say(f"{'schedule':<14}{schedule.updates_per_generation:g} updates per generation")
    say(f"{'constraint':<14}{_can_act(options.method, schedule)}")
    return 0


def _can_act(name: str, schedule: "Schedule") -> str:
    """Whether TRL can train with a method, and whether the schedule lets it act."""
    from trustclip.constraints.base import Trait
    from trustclip.constraints.registry import as_method
    from trustclip.engines.limits import ENGINES, refusal

    method = as_method(name)
    if problem := refusal(method, ENGINES["TRL"]):
        return f"cannot be trained: {problem}"
    if Trait.ACTS_ON_POLICY in method.traits:
        return "can act at any ratio, also on fresh samples"
    if schedule.inert:
        return f"cannot act: {schedule.explain_inert(method.name)}"
    return "can act from the second update of a generation on"


def _verl(arguments: Sequence[str]) -> int:
    from trustclip.engines.verl.checks import installed, remarks
    from trustclip.engines.verl.config import load
    from trustclip.support.jsonl import bounded_yaml

    config = load(arguments, bounded_yaml)
    return _report(list(remarks(config, installed())))


@dataclasses.dataclass
class Job:
    """The processes of a job, as its launcher started them, against settings of training."""

    method: str = "atr"
    """Name of the constraint."""
    per_device_train_batch_size: int = 8
    """Completions per micro-batch and rank."""
    num_generations: int = 8
    """Completions per prompt."""
    gradient_accumulation_steps: int = 4
    """Micro-batches per update."""
    steps_per_generation: int | None = None
    """Micro-batches per generation; gradient-accumulation-steps when unset."""
    num_iterations: int = 2
    """Passes over a generation."""
    use_vllm: bool = False
    """Generate with vLLM."""


def _distributed(arguments: Sequence[str]) -> int:
    """Check the ranks that a launcher started against a recipe, or against given settings."""
    import os
    from pathlib import Path

    from trustclip.engines.limits import check
    from trustclip.engines.remarks import Remark
    from trustclip.train.checks import absent
    from trustclip.train.files import load_recipe
    from trustclip.train.preflight.ranks import Load, describe, inspect_ranks, remarks
    from trustclip.train.settings.stages import RLStage

    if arguments and not arguments[0].startswith("-"):
        stage = load_recipe(Path(arguments[0])).rl
        if stage is None:
            raise ValueError(f"{arguments[0]} has no section `rl` to distribute.")
    else:
        options = parse(Job, arguments, "doctor --distributed")
        stage = RLStage(dataset="arithmetic", **dataclasses.asdict(options))
        check(stage.method, "TRL")
    load = Load(
        stage.method,
        stage.per_device_train_batch_size,
        stage.num_generations,
        stage.schedule,
        str(stage.trl.get("vllm_mode", "colocate")) if stage.use_vllm else "",
        stage.save_steps > 0,
    )
    world = inspect_ranks(stage.trl)
    if os.environ.get("RANK", "0") != "0":
        return 0  # the first rank reports for all
    for label, text in describe(world, load):
        say(f"{label:<14}{text}")
    missing = (Remark("error", text) for text in absent(stage))
    return _report([*remarks(world, load), *missing])


def _sampler(arguments: Sequence[str]) -> int:
    """Compare sampler and trainer on the first completions of a recipe, or on recorded ones."""
    from pathlib import Path

    from trustclip.cli.arguments import changes_of
    from trustclip.train.preflight.sampler import first_completions, read_pairs
    from trustclip.train.settings.stages import Recipe

    arguments, length = _length(arguments)
    if any(part.partition("=")[0] == "--server" for part in arguments):
        return _report_verdict(_of_server(arguments), length)
    positional, changes = changes_of(arguments, Recipe)
    if len(positional) != 1:
        raise ValueError(
            "trustclip doctor --sampler takes one recipe (.yaml), or one file (.jsonl) with "
            f"`logp_old` and `logp_rollout` of each completion; got {positional or 'none'}."
        )
    path = Path(positional[0])
    if path.suffix == ".jsonl":
        if changes:
            raise ValueError(f"a file of completions takes no options, got {', '.join(changes)}.")
        return _report_verdict(read_pairs(path), length)
    from trustclip.train.files import load_recipe

    recipe = load_recipe(path, changes)
    pairs = first_completions(recipe)
    return _report_verdict(pairs, length or recipe.rl.max_completion_length, recipe.rl.method)


def _length(arguments: Sequence[str]) -> tuple[list[str], int]:
    """The arguments without ``--length N``, and N; 0 where it is not given."""
    rest, length = split_option([*arguments], "--length")
    if length is not None and not (length.isdigit() and int(length)):
        raise ValueError(f"--length is a number of tokens, 1 or more; got {length!r}.")
    return rest, int(length or 0)


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
    from trustclip.train.preflight.foreign import server_pairs
    from trustclip.train.settings.stages import EvalSettings

    options = parse(OfServer, arguments, "doctor --sampler")
    check_address(options.server)
    import tempfile
    from pathlib import Path

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


def _report_verdict(pairs: "Pairs", length: int = 0, method: "Method | None" = None) -> int:
    """Print the verdict, where the two differ, and the damage at a length in tokens.

    Returns:
      0 if they agree, or differ as half precision or other kernels make them; 1 otherwise.
    """
    from trustclip.findings.mismatch import anatomy, damage
    from trustclip.findings.mismatch.agreement import compare

    verdict = compare(pairs)
    say(f"{'verdict':<16}{verdict.title}")
    say(verdict.text)
    if verdict.cause == "none" and verdict.harmless:
        return 0
    for label, text in anatomy.lines(pairs):
        say(f"{label:<16}{text}")
    if not length and pairs.position is not None:
        length = int(pairs.position.max()) + 1
    if verdict.adds_up and length:
        for text in damage.sentences(pairs, length):
            say(text)
    if method is not None and (text := damage.too_tight(method, pairs, length)):
        say(text)
        return 1
    return 0 if verdict.harmless else 1


def _report(remarks: "Sequence[Remark]") -> int:
    """Print remarks; 1 if any is an error."""
    for remark in remarks:
        say(f"{remark.level + ':':<7}{remark.text}")
    errors = sum(remark.level == "error" for remark in remarks)
    say(f"{errors} error{'' if errors == 1 else 's'}" if errors else "no errors")
    return 1 if errors else 0
