"""Commands about the machine and what is installed on it."""

import dataclasses
from collections.abc import Sequence

from trustclip.arguments import parse


def doctor(argv: Sequence[str]) -> int:
    """Versions, devices, the arithmetic of a schedule; ``--verl CONFIG`` reads one of verl's."""
    if "--verl" in argv:
        return _verl(argv[list(argv).index("--verl") + 1 :])

    @dataclasses.dataclass
    class Options:
        num_iterations: int = 1
        """Passes over a generation (TRL's default)."""
        steps_per_generation: int | None = None
        """Micro-batches per generation; as many as an update has when unset (TRL's default)."""
        gradient_accumulation_steps: int = 1
        """Micro-batches per update."""
        method: str = "atr"
        """The constraint that should act."""

    options = parse(Options, argv, "doctor")
    import torch

    from trustclip.engines.schedule import Schedule
    from trustclip.recipes.records import environment

    found = environment()
    for name, version in found["versions"].items():
        print(f"{name:<14}{version}")
    print(f"{'platform':<14}{found['platform']}")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"{'devices':<14}{', '.join(devices) or 'CPU only'} ({found['processors']} processors)")
    schedule = Schedule(
        options.steps_per_generation or options.gradient_accumulation_steps,
        options.num_iterations,
        options.gradient_accumulation_steps,
    )
    print(f"{'schedule':<14}{schedule.updates_per_generation:g} updates per generation")
    if schedule.inert:
        print(f"{'constraint':<14}cannot act: {schedule.explain_inert(options.method)}")
    else:
        print(f"{'constraint':<14}can act from the second update of a generation on")
    return 0


def _verl(arguments: Sequence[str]) -> int:
    """Sentences about a configuration of verl; 1 where one of them is an error."""
    from trustclip.engines.verl_checks import findings, installed
    from trustclip.engines.verl_config import load

    config = load(arguments)
    found = list(findings(config, installed()))
    for finding in found:
        print(f"{finding.level + ':':<7}{finding.text}")
    errors = sum(finding.level == "error" for finding in found)
    print(f"{errors} error{'' if errors == 1 else 's'}" if errors else "nothing wrong was found")
    return 1 if errors else 0
