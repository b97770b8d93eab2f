"""The command `doctor`: what is installed, and whether a schedule or a sampler is sound."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trustclip.cli.arguments import parse, print_help, taken
from trustclip.support.marks import Metavar
from trustclip.support.terminal import say

if TYPE_CHECKING:
    from trustclip.constraints.base import Method
    from trustclip.constraints.sampler import Pairs
    from trustclip.engines.limits import Remark


@dataclasses.dataclass
class Doctor:
    """Versions, devices, and whether a schedule lets a constraint act; or one of three checks."""

    num_iterations: int = 1
    """Passes over a generation; the default is TRL's."""
    steps_per_generation: int | None = None
    """Micro-batches per generation; gradient-accumulation-steps when unset (TRL's default)."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per update."""
    method: str = "atr"
    """Name of the constraint."""
    verl: Annotated[tuple[str, ...], Metavar("FILE.yaml")] = ()
    """Check a resolved configuration of verl; its trainer prints one with --cfg job --resolve."""
    distributed: Annotated[tuple[str, ...], Metavar("RECIPE")] = ()
    """Check the processes of a job, started by the launcher that will train, against a recipe
    [--SECTION.NAME VALUE ...] or, without one, against options of trustclip rl."""
    sampler: Annotated[tuple[str, ...], Metavar("RECIPE|FILE.jsonl")] = ()
    """Compare the sampler with the trainer on the first completions of a recipe, or on recorded
    ones. --length N estimates the damage at N tokens. A running server is compared with a model by
    --sampler --server URL --model MODEL, with options of trustclip eval, such as --limit 32."""

    def __call__(self) -> int:
        import torch

        from trustclip.constraints.base import Trait
        from trustclip.constraints.registry import as_method
        from trustclip.constraints.schedule import Schedule
        from trustclip.engines.limits import ENGINES, refusal
        from trustclip.logs.writing.environment import environment

        facts = environment()
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        generation = self.steps_per_generation or self.gradient_accumulation_steps
        schedule = Schedule(generation, self.num_iterations, self.gradient_accumulation_steps)
        method = as_method(self.method)
        problem = refusal(method, ENGINES["TRL"])
        acts = schedule.acts(method.name, Trait.ACTS_ON_POLICY in method.traits)
        verdict = f"NO: {problem}" if problem else acts
        rows = facts["versions"] | {
            "platform": facts["platform"],
            "processor": facts["processor"],
            "devices": f"{', '.join(devices) or 'CPU only'} ({facts['processors']} processors)",
            "schedule": f"updates per generation: {schedule.updates_per_generation:g}",
            "can it act?": verdict,
        }
        for name, text in rows.items():
            say(f"{name:<14}{text}")
        return int(verdict.startswith("NO"))


def doctor(argv: Sequence[str]) -> int:
    print_help(argv, Doctor, "doctor")
    for flag, check in (("--verl", _verl), ("--sampler", _sampler), ("--distributed", _launched)):
        rest = [word.removeprefix(f"{flag}=") for word in argv if word != flag]
        if rest != [*argv]:
            return check(rest)
    status = parse(Doctor, argv, "doctor")()
    return status if argv else 0  # of the machine alone; nobody has asked about a schedule


def _verl(arguments: Sequence[str]) -> int:
    from trustclip.engines.verl.checks import installed, load, remarks

    return _report(list(remarks(load(arguments), installed())))


def _launched(arguments: Sequence[str]) -> int:
    from trustclip.cli.commands.preflight import distributed

    found = distributed(arguments)
    return 0 if found is None else _report(found)


def _sampler(arguments: Sequence[str]) -> int:
    """Compare sampler and trainer on recorded completions, or on the first ones of a recipe."""
    rest, length = taken(arguments, "--length N")
    if length is not None and not (length.isdigit() and int(length)):
        raise ValueError(f"--length is a number of tokens, 1 or more; got {length!r}.")
    if rest and rest[0].endswith(".jsonl"):
        from trustclip.logs.pairs import read_pairs

        if rest[1:]:
            raise ValueError(f"a file of completions takes no options, got {rest[1]}.")
        pairs, most, method = read_pairs(Path(rest[0])), 0, None
    else:
        from trustclip.cli.commands.preflight import sampled

        pairs, most, method = sampled(rest)
    return _report_verdict(pairs, int(length or most), method)


def _report_verdict(pairs: "Pairs", length: int = 0, method: "Method | None" = None) -> int:
    """Print the verdict, where the two differ, and the damage at a length in tokens.

    Returns:
      0 if they agree, or differ as half precision or other kernels make them; 1 otherwise.
    """
    from trustclip.findings.mismatch.agreement import ADDS_UP, TITLES, compare, damage, too_tight

    verdict = compare(pairs)
    say(f"{'verdict':<16}{TITLES[verdict.name]}")
    say(verdict.sentence)
    if verdict.name == "none":
        return 0
    if not length and pairs.position is not None:
        length = int(pairs.position.max()) + 1
    if verdict.name in ADDS_UP and length:
        say(damage(pairs, length))
    if method is not None and (tight := too_tight(method, pairs, length)):
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
