"""The laboratory's commands: ``trustclip lab``, ``arena``, ``theory``, ..."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trustclip.cli.arguments import changes_of, parse, print_help, split_option
from trustclip.support.names import unknown
from trustclip.support.terminal import Terminal, say

LAB = """\
usage: trustclip lab [FILE] [--NAME VALUE ...]

Methods on many seeds at once, of very small policies. The same command continues.

  FILE          YAML of the settings below, or the name of one that comes along: trustclip recipes
  --NAME VALUE  change a setting of the file
"""


def lab(argv: Sequence[str]) -> None:
    """``trustclip lab [FILE]``: methods on very small policies, many seeds at once."""
    from trustclip.train.shipped import locate
    from trustclip_lab.stack import LabSettings, load, run_lab

    print_help(argv, LabSettings, "lab", usage=LAB)
    files, changes = changes_of(argv, LabSettings)
    if len(files) > 1:
        raise ValueError(f"give one file, got {len(files)}; see trustclip lab --help.")
    run_lab(load(locate(Path(files[0])) if files else None, changes), Terminal())


ARENA = """\
usage: trustclip arena FILE [--NAME VALUE ...]

Constraints with equal tuning budgets on many seeds of the lab: every trial on tuning seeds, the
best of each constraint on fresh ones. The same command continues what was interrupted.

  FILE           YAML of the settings below, or the name of one that comes along, such as arena
  --NAME VALUE   change a setting of the file by its path, such as --output-dir, --jobs,
                 --depths '{4: {}, 256: {passes: 16}}' or --axes '{}'

A constraint of your own: --constraints '{mine: ...}' --reference mine --contrasts '{}'
--controls '{}' --output-dir mine; with --allow-code where it names a module.
"""


def arena(argv: Sequence[str]) -> None:
    """``trustclip arena FILE``: constraints tuned alike and compared on fresh seeds."""
    from trustclip.train.shipped import locate
    from trustclip_lab.arena.run import load, run_arena
    from trustclip_lab.arena.settings import ArenaSettings

    print_help(argv, ArenaSettings, "arena", usage=ARENA)
    files, changes = changes_of(argv, ArenaSettings)
    if len(files) != 1:
        raise ValueError(f"give one file, got {len(files)}; see trustclip arena --help.")
    run_arena(load(locate(Path(files[0])), changes), Terminal())


def control(argv: Sequence[str]) -> None:
    """Methods in PPO on Gymnasium environments."""
    import torch

    from trustclip_lab.control import PRESETS, ControlSettings, run_control

    settings = parse(ControlSettings, argv, "control", presets=partial(_preset, PRESETS))
    torch.set_num_threads(1)  # networks this small are slower on several
    run_control(settings, Terminal())


def tabular(argv: Sequence[str]) -> None:
    """Methods on a bandit and a tree, where everything is exact."""
    import torch

    from trustclip_lab.tabular import PRESETS, TabularSettings, run_tabular

    rest, out = split_option(list(argv), "--out")
    settings = parse(TabularSettings, rest, "tabular", presets=partial(_preset, PRESETS))
    torch.set_num_threads(1)  # tensors this small are slower on several
    run_tabular(settings, Terminal(), None if out is None else Path(out))


def _preset(presets: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in presets:
        raise ValueError(unknown("preset", name, presets))
    return vars(presets[name])


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
