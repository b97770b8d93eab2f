"""Commands about the machine and what is installed on it."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trustclip.arguments import parse

if TYPE_CHECKING:
    from trustclip.engines.verl_checks import Finding


def doctor(argv: Sequence[str]) -> int:
    """Versions, devices, the arithmetic of a schedule; ``--verl CONFIG`` reads one of verl's.

    ``--distributed [RECIPE]``, under the launcher that is to train: what it would really run.
    """
    if "--verl" in argv:
        return _verl(argv[list(argv).index("--verl") + 1 :])
    if "--distributed" in argv:
        return _distributed([part for part in argv if part != "--distributed"])

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
    return _said(list(findings(config, installed())))


def _distributed(arguments: Sequence[str]) -> int:
    """What the ranks that a launcher started would do with a recipe, or with these settings."""
    import os
    from pathlib import Path

    from trustclip.engines.ranks import Load, described, findings, found
    from trustclip.method import method
    from trustclip.recipes.checks import schedule_of
    from trustclip.recipes.files import load_recipe
    from trustclip.recipes.settings import RLStage

    @dataclasses.dataclass
    class Options:
        method: str = "atr"
        """The constraint that should act."""
        per_device_train_batch_size: int = 8
        """Completions per micro-batch and rank."""
        num_generations: int = 8
        """Completions per prompt."""
        gradient_accumulation_steps: int = 4
        """Micro-batches per update."""
        steps_per_generation: int | None = None
        """Micro-batches per generation; as many as an update has when unset."""
        num_iterations: int = 2
        """Passes over a generation."""
        use_vllm: bool = False
        """Generate with vLLM."""

    if arguments and not arguments[0].startswith("-"):
        stage = load_recipe(Path(arguments[0])).rl
        if stage is None:
            raise ValueError(f"{arguments[0]} has no section `rl`: nothing to spread over ranks.")
    else:
        options = parse(Options, arguments, "doctor --distributed")
        stage = RLStage(dataset="arithmetic", **dataclasses.asdict(options))
    load = Load(
        method(stage.method, **stage.method_args),
        stage.per_device_train_batch_size,
        stage.num_generations,
        schedule_of(stage),
        str(stage.trl.get("vllm_mode", "colocate")) if stage.use_vllm else "",
        stage.save_steps > 0,
    )
    world = found(stage.trl)
    if os.environ.get("RANK", "0") != "0":
        return 0  # the first rank speaks for all
    for label, text in described(world, load):
        print(f"{label:<14}{text}")
    return _said(list(findings(world, load)))


def _said(found: "Sequence[Finding]") -> int:
    """Print what was found; 1 where one of it is an error."""
    for finding in found:
        print(f"{finding.level + ':':<7}{finding.text}")
    errors = sum(finding.level == "error" for finding in found)
    print(f"{errors} error{'' if errors == 1 else 's'}" if errors else "nothing wrong was found")
    return 1 if errors else 0
