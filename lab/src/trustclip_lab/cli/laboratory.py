"""The laboratory's commands: ``trustclip lab``, ``arena``, ``theory``, ..."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trustclip.cli.arguments import changes_of, file_of, given, parse, print_help, taken
from trustclip.support.names import unknown
from trustclip.support.settings import Source, build
from trustclip.support.terminal import Terminal, say

T = TypeVar("T")

_FILE = "of the settings below, or the name of one that comes along (trustclip recipes)."
LAB = {
    "[FILE]": f"YAML {_FILE} The same command continues what was interrupted.",
    "--NAME VALUE": "Change a setting of the file.",
}
ARENA = {
    "FILE": f"YAML {_FILE} The same command continues what was interrupted.",
    "--NAME VALUE": "Change a setting of the file by its path, such as --output-dir, --jobs, "
    "--depths '{4: {}, 256: {passes: 16}}' or --axes '{}'. A constraint of your own: "
    "--constraints '{mine: ...}' --reference mine --contrasts '{}' --controls '{}' --output-dir "
    "mine; with --allow-code where it names a module.",
}
PRESET = {"--preset NAME": "Begin with the settings of a preset, which options change."}
OUT = {"--out FILE": "Write the outcomes of every seed to this new JSON-lines file."}


def lab(argv: Sequence[str]) -> None:
    """``trustclip lab [FILE]``: methods on very small policies, many seeds at once."""
    from trustclip.train.shipped import locate
    from trustclip_lab.stack import LabSettings, load, run_lab

    print_help(argv, LabSettings, "lab", LAB)
    files, changes = changes_of(argv, LabSettings)
    if len(files) > 1:
        raise ValueError(f"give one file, got {len(files)}; see trustclip lab --help.")
    run_lab(load(locate(Path(files[0])) if files else None, changes), Terminal())


def arena(argv: Sequence[str]) -> None:
    """``trustclip arena FILE``: constraints tuned alike and compared on fresh seeds."""
    from trustclip.train.shipped import locate
    from trustclip_lab.arena.run import load, run_arena
    from trustclip_lab.arena.settings import ArenaSettings

    print_help(argv, ArenaSettings, "arena", ARENA)
    file, changes = file_of(argv, ArenaSettings, "arena", "file")
    run_arena(load(locate(file), changes), Terminal())


def control(argv: Sequence[str]) -> None:
    """Methods in PPO on Gymnasium environments."""
    import torch

    from trustclip_lab.control import PRESETS, ControlSettings, run_control

    settings = _settings(ControlSettings, argv, "control", PRESETS)
    torch.set_num_threads(1)  # networks this small are slower on several
    run_control(settings, Terminal())


def tabular(argv: Sequence[str]) -> None:
    """Methods on a bandit and a tree, where everything is exact."""
    import torch

    from trustclip_lab.tabular import PRESETS, TabularSettings, run_tabular

    rest, out = taken(argv, *OUT)
    settings = _settings(TabularSettings, rest, "tabular", PRESETS, OUT)
    torch.set_num_threads(1)  # tensors this small are slower on several
    run_tabular(settings, Terminal(), None if out is None else Path(out))


def _settings(
    cls: type[T],
    argv: Sequence[str],
    command: str,
    presets: Mapping[str, Any],
    further: Mapping[str, str] = {},
) -> T:
    """The settings of a command line, which change those of ``--preset NAME``."""
    rest, name = taken(argv, *PRESET)
    changes = given(cls, rest, command, {**PRESET, **further})
    if name is not None and name not in presets:
        raise ValueError(unknown("preset", name, presets))
    content = {} if name is None else {**vars(presets[name])}
    return build(cls, content, Source(changes=changes))


def bench(argv: Sequence[str]) -> None:
    """``trustclip bench gpu``: the stages that a GPU settles, and their tables."""
    from trustclip_lab.bench.gpu.session import GpuOptions, run

    options = parse(GpuOptions, argv, "bench")
    import torch

    torch.set_num_threads(1)
    for table in run(options):
        table.print(Terminal())


@dataclasses.dataclass
class Paper:
    """The ATR-GRPO paper's tables, audited: every cell, test, interval and power, as JSON."""

    def __call__(self) -> None:
        from trustclip_lab.paper.audit import audit

        say(json.dumps(audit().as_json(), indent=1, ensure_ascii=False))


@dataclasses.dataclass
class Theory:
    def __call__(self) -> int:
        from trustclip_lab.theory import run_theory

        return run_theory(Terminal())
