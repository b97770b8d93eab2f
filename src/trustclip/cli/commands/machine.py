"""The command `doctor`: what is installed, and whether a schedule or a sampler is sound."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trustclip.cli.arguments import parse, split_option
from trustclip.support.marks import Metavar
from trustclip.support.terminal import say

if TYPE_CHECKING:
    from trustclip.constraints.base import Method
    from trustclip.constraints.sampler import Pairs
    from trustclip.constraints.schedule import Schedule
    from trustclip.engines.limits import Remark


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
    verl: Annotated[tuple[str, ...], Metavar("FILE.yaml")] = ()
    """Check a configuration of verl, resolved: its trainer prints it with --cfg job --resolve."""
    distributed: Annotated[tuple[str, ...], Metavar("RECIPE")] = ()
    """Check the processes of a job, started by the launcher that will train, against a recipe or
    against options: trustclip doctor --distributed --help."""
    sampler: Annotated[tuple[str, ...], Metavar("RECIPE|FILE.jsonl")] = ()
    """Compare the sampler with the trainer on the first completions of a recipe, or on recorded
    ones; a running server with a model: trustclip doctor --sampler --server URL --model MODEL.
    --length N estimates the damage at N tokens."""


def doctor(argv: Sequence[str]) -> int:
    if "--verl" in argv:
        return _verl(argv[list(argv).index("--verl") + 1 :])
    if "--sampler" in argv:
        return _sampler([part for part in argv if part != "--sampler"])
    if "--distributed" in argv:
        from trustclip.cli.commands.preflight import distributed

        found = distributed([part for part in argv if part != "--distributed"])
        return 0 if found is None else _report(found)
    options = parse(Doctor, argv, "doctor")
    import torch

    from trustclip.constraints.schedule import Schedule
    from trustclip.logs.writing.environment import environment

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
    verdict = _can_act(options.method, schedule)
    say(f"{'constraint':<14}{verdict}")
    # Without options it reports on the machine; nobody has asked about a schedule.
    return int(bool(argv) and verdict.startswith("cannot"))


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
    from trustclip.engines.verl.checks import installed, load, remarks

    return _report(list(remarks(load(arguments), installed())))


def _sampler(arguments: Sequence[str]) -> int:
    """Compare sampler and trainer on recorded completions, or on the first ones of a recipe."""
    arguments, length = _length(arguments)
    if arguments and arguments[0].endswith(".jsonl"):
        from trustclip.logs.pairs import read_pairs

        if arguments[1:]:
            raise ValueError(f"a file of completions takes no options, got {arguments[1]}.")
        return _report_verdict(read_pairs(Path(arguments[0])), length)
    from trustclip.cli.commands.preflight import sampled

    pairs, most, method = sampled(arguments)
    return _report_verdict(pairs, length or most, method)


def _length(arguments: Sequence[str]) -> tuple[list[str], int]:
    """The arguments without ``--length N``, and N; 0 where it is not given."""
    rest, length = split_option([*arguments], "--length")
    if length is not None and not (length.isdigit() and int(length)):
        raise ValueError(f"--length is a number of tokens, 1 or more; got {length!r}.")
    return rest, int(length or 0)


def _report_verdict(pairs: "Pairs", length: int = 0, method: "Method | None" = None) -> int:
    """Print the verdict, where the two differ, and the damage at a length in tokens.

    Returns:
      0 if they agree, or differ as half precision or other kernels make them; 1 otherwise.
    """
    from trustclip.findings.mismatch import damage
    from trustclip.findings.mismatch.agreement import TITLES, compare

    verdict = compare(pairs)
    say(f"{'verdict':<16}{TITLES[verdict.name]}")
    say(verdict.sentence)
    if verdict.name == "none":
        return 0
    if not length and pairs.position is not None:
        length = int(pairs.position.max()) + 1
    if verdict.name in damage.ADDS_UP and length:
        say(damage.sentence(pairs, length))
    if method is not None and (tight := damage.too_tight(method, pairs, length)):
        say(tight.sentence)
        return 1
    return 1 if verdict.troubles else 0


def _report(remarks: "Sequence[Remark]") -> int:
    """Print remarks; 1 if any is an error."""
    for remark in remarks:
        say(f"{remark.level + ':':<7}{remark.text}")
    errors = sum(remark.level == "error" for remark in remarks)
    say(f"{errors} error{'' if errors == 1 else 's'}" if errors else "no errors")
    return 1 if errors else 0
