"""The laboratory's commands, but ``bench``: ``trustclip lab``, ``arena``, ``theory``, ..."""

import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from trustclip.cli.arguments import changes_of, parse, reads, require, split_option
from trustclip.support.jsonl import write_text
from trustclip.support.marks import Also, Argument
from trustclip.support.terminal import Terminal, say


@dataclasses.dataclass
class Atlas:
    """A page, one file, of every method's gate: with a slider for each hyper-parameter, its
    ratio interval, formula and source; several methods in one picture."""

    out: Annotated[Path, Also(("-o",))] = Path("atlas.html")
    """Where the page goes. Opened as atlas.html#atr+clip it compares these two."""


@reads(Atlas)
def atlas(options: Atlas) -> int:
    """Write a page of every method's gate: sliders, interval, formula, source; compared."""

    if not options.out.absolute().parent.is_dir():
        raise ValueError(f"--out {options.out}: the folder {options.out.parent} does not exist.")
    from trustclip_lab.pages.atlas import atlas_page

    say(f"atlas: every method at every setting of its sliders, in {options.out}", flush=True)
    options.out.write_text(atlas_page(), encoding="utf-8")
    say(options.out)
    return 0


LAB = """\
usage: trustclip lab [FILE] [--NAME VALUE ...]

Methods on many seeds at once, of very small policies. The same command continues.

  FILE          YAML of the settings below, or the name of one that comes along: trustclip recipes
  --NAME VALUE  change a setting of the file
"""


def lab(argv: Sequence[str]) -> int:
    """``trustclip lab [FILE]``: methods on many seeds at once, of very small policies."""
    from trustclip.train.shipped import locate
    from trustclip_lab.stack import LabSettings, load, run_lab

    if {"-h", "--help"} & set(argv):
        parse(LabSettings, ["--help"], "lab", usage=LAB)
    files, changes = changes_of(argv, LabSettings)
    if len(files) > 1:
        raise ValueError(f"give one file, got {len(files)}; see trustclip lab --help.")
    run_lab(load(locate(Path(files[0])) if files else None, changes), Terminal())
    return 0


ARENA = """\
usage: trustclip arena FILE [--dry-run | --part K/N | --collect] [--NAME VALUE ...]
       trustclip arena page FOLDER [--out FILE] [--add SUBMISSION ...]
       trustclip arena verify FOLDER [--against ARENA] [--check CELLS]

Constraints with equal tuning budgets on many seeds of the lab: every trial on tuning seeds, the
best of each constraint on fresh ones. The same command continues what was interrupted.

  FILE           YAML of the settings below, or the name of one that comes along, such as arena
  --dry-run      check everything, print the number of runs and an estimate of their time
  --part K/N     the K-th of N parts, for jobs of a cluster that share the folder: call them all,
                 call them all again for the tests, then --collect
  --collect      write the table of the settings that are complete, and train nothing
  --NAME VALUE   change a setting of the file by its path, such as --output-dir, --jobs,
                 --depths '{4: {}, 256: {passes: 16}}' or --axes '{}'
  page           leaderboard, contrasts, profiles, tuning curves, tasks, of a folder of runs
    verify         run some cells of a folder again, and say whether they are the same to the last
                 digit

A constraint of your own: --constraints '{mine: ...}' --reference mine --contrasts '{}'
--controls '{}' --output-dir mine; with --allow-code where it names a module. `arena page ARENA
--add mine` shows it beside the arena's.
"""


def arena(argv: Sequence[str]) -> int:
    """``trustclip arena FILE``: constraints tuned alike and compared on fresh seeds."""
    if argv and argv[0] in ("page", "verify"):
        return {"page": page, "verify": verify}[argv[0]](argv[1:])
    from trustclip.train.shipped import locate
    from trustclip_lab.arena.run import collect, estimate, load, run_arena, run_part
    from trustclip_lab.arena.settings import ArenaSettings

    if {"-h", "--help"} & set(argv):
        parse(ArenaSettings, ["--help"], "arena", usage=ARENA)
    switches = ("--dry-run", "--collect")
    rest, part = split_option([one for one in argv if one not in switches], "--part")
    files, changes = changes_of(rest, ArenaSettings)
    if len(files) != 1:
        raise ValueError(f"give one file, got {len(files)}; see trustclip arena --help.")
    settings, console = load(locate(Path(files[0])), changes), Terminal()
    if "--dry-run" in argv:
        console.print(estimate(settings))
    elif "--collect" in argv:
        collect(settings, console)
    elif part is not None:
        run_part(settings, console, *_part(part))
    else:
        run_arena(settings, console)
    return 0


def _part(text: str) -> tuple[int, int]:
    """Part and number of parts, of ``"3/8"``."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise ValueError(f"--part is the number of a part and of all, such as 3/8; got {text!r}.")
    return int(part), int(parts)


def control(argv: Sequence[str]) -> int:
    """Methods in PPO on Gymnasium environments."""
    import torch

    from trustclip_lab.control import PRESETS, ControlSettings, run_control

    settings = parse(ControlSettings, argv, "control", PRESETS)
    torch.set_num_threads(1)  # networks this small are slower on several
    run_control(settings, Terminal())
    return 0


def page(argv: Sequence[str]) -> int:
    """The page of a folder of the arena, with other folders' constraints beside its own."""
    from trustclip_lab.arena.entry import combine, plan_differences, read_entry
    from trustclip_lab.arena.page import contents, write_page

    @dataclasses.dataclass
    class Options:
        folder: Argument[Path]
        """Folder of the arena: arena.yaml and runs.parquet."""
        out: Path = Path("arena.html")
        """File of the page."""
        add: tuple[Path, ...] = ()
        """Folders of other constraints, run by the same plan."""

    options = parse(Options, argv, "arena page")
    arena = read_entry(options.folder)
    entries = [read_entry(folder) for folder in options.add]
    for folder, entry in zip(options.add, entries, strict=True):
        if problems := plan_differences(entry, arena):
            raise ValueError(f"{folder} has another plan:\n" + _list(problems))
    every = combine(arena, entries) if entries else arena
    say(write_page(contents(every, {}), options.out))
    return 0


def verify(argv: Sequence[str]) -> int:
    """Whether repeated runs of a folder are the same."""
    from trustclip_lab.arena.entry import read_entry
    from trustclip_lab.arena.reruns import differences

    @dataclasses.dataclass
    class Options:
        folder: Argument[Path]
        """Folder that `trustclip arena` has written."""
        check: int = 5
        """Cells, drawn at random, of which a few seeds are run again and compared."""

    options = parse(Options, argv, "arena verify")
    if options.check < 1:
        raise ValueError(f"`check` is a number of cells, 1 or more; got {options.check}.")
    entry = read_entry(options.folder)
    if problems := [*differences(entry, options.check)]:
        raise ValueError(f"{options.folder}: its runs differ here.\n" + _list(problems))
    say(f"{len(entry.runs)} runs, {options.check} cells run again are the same.")
    return 0


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


@dataclasses.dataclass
class Paper:
    """The ATR-GRPO paper's tables, audited."""

    json: bool = False
    """Write JSON instead of text: every cell, test, interval and power."""
    out: Path | None = None
    """Write to this file instead of the terminal."""


@reads(Paper)
def paper(options: Paper) -> int:
    """``trustclip paper [--json] [--out FILE]``: which claims the paper's tables support."""
    if options.out is not None and options.out.exists():
        raise ValueError(f"{options.out} exists; choose another --out.")
    from trustclip_lab.paper.audit import audit
    from trustclip_lab.paper.console import render

    text = io.StringIO()
    if options.json:
        text.write(json.dumps(audit().as_json(), indent=1, ensure_ascii=False) + "\n")
    elif options.out is not None:
        render(audit(), Terminal(file=text, width=160, soft_wrap=True))
    else:
        render(audit(), Terminal(soft_wrap=True))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out, text.getvalue())
    else:
        say(text.getvalue(), end="")
    return 0


@dataclasses.dataclass
class Theory:
    """The paper's theorems, computed on both sides."""

    figures: Path | None = None
    """Draw the figures into this folder."""


@reads(Theory)
def theory(options: Theory) -> int:
    """The paper's theorems, computed on both sides."""
    if options.figures is not None:
        require("matplotlib")
    from trustclip_lab.theory import run_theory

    return run_theory(Terminal(), options.figures)


def tabular(argv: Sequence[str]) -> int:
    """Methods on a bandit and a tree, where everything is exact."""
    import torch

    from trustclip_lab.tabular import PRESETS, TabularSettings, run_tabular

    rest, out = split_option(list(argv), "--out")
    settings = parse(TabularSettings, rest, "tabular", PRESETS)
    torch.set_num_threads(1)  # tensors this small are slower on several
    run_tabular(settings, Terminal(), None if out is None else Path(out))
    return 0
