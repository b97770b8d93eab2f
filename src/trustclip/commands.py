"""The commands behind ``trustclip``: arguments in, an exit status out."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from trustclip.arguments import method_from, parse


def recipe(name: str, argv: Sequence[str]) -> int:
    """``demo``, ``sft``, ``rl`` and ``eval``."""
    from trustclip.recipes import settings as known

    cls: Any = {
        "demo": known.DemoSettings,
        "sft": known.SFTSettings,
        "rl": known.RLSettings,
        "eval": known.EvalSettings,
    }[name]
    settings = parse(cls, argv, name, known.PRESETS.get(name))
    if name in ("demo", "rl"):
        from trustclip.method import method

        method(settings.method, **settings.method_args)
    console = Console(stderr=False)
    run = _runner(name)(settings, console)
    if name == "demo":
        from trustclip.report.page import write_page

        page = write_page(run.path, "A small policy learns")
        for label, path in (("model", "final"), ("summary", "summary.json"), ("report", page)):
            console.print(f"{label:>8}: {run.path / path}", highlight=False)
    return 0


def _runner(name: str) -> Any:
    # Here torch and transformers are imported: everything the user said has been checked.
    from trustclip.recipes.callbacks import silence_libraries

    silence_libraries()
    if name == "demo":
        from trustclip.recipes.demo import demo as run
    elif name == "sft":
        from trustclip.recipes.sft import sft as run
    elif name == "rl":
        from trustclip.recipes.rl import rl as run
    else:
        from trustclip.recipes.evaluate import run_evaluation as run
    return run


def methods(argv: Sequence[str]) -> int:
    """The constraints, one line each; ``--figure FILE`` draws their gates."""

    @dataclasses.dataclass
    class Options:
        figure: Path | None = None
        """Write a picture (SVG) of every method's gate to this file."""
        markdown: bool = False
        """Print the table in Markdown."""

    options = parse(Options, argv, "methods")
    if options.figure is not None:
        from trustclip.report.atlas import every_gate

        options.figure.write_text(every_gate(), encoding="utf-8")
        print(options.figure)
        return 0
    rows = [_method_row(name, cls) for name, cls in _methods().items()]
    if options.markdown:
        print("| method | what it does | defaults |\n|---|---|---|")
        for name, does, defaults in rows:
            print(f"| `{name}` | {does} | {defaults} |")
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("method", "what it does", "defaults"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return 0


def _methods() -> dict[str, Any]:
    import trustclip

    return trustclip.methods()


def _method_row(name: str, cls: Any) -> tuple[str, str, str]:
    first = (cls.__doc__ or "").strip().splitlines()[0].partition(": ")[2]
    defaults = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(cls))
    return name, first, defaults


def bounds(argv: Sequence[str]) -> int:
    """``trustclip bounds METHOD [--hyper-parameter VALUE ...]``."""
    if not argv or argv[0].startswith("-"):
        print(
            "usage: trustclip bounds METHOD [--HYPER-PARAMETER VALUE ...]\n\n"
            "The ratio interval inside which the gate of METHOD never closes, and the settings of\n"
            "stock TRL and verl with the same gradient. Methods: " + ", ".join(_methods())
        )
        return 0 if argv else 2
    import torch

    from trustclip.method import interval, method_class

    name, *rest = argv
    cls = method_class(name)
    chosen = method_from(cls, rest, f"bounds {name}")
    print(chosen)
    try:
        low, high = interval(chosen)
    except ValueError as error:
        if "p_old" not in str(error):
            raise
        _bounds_by_probability(chosen, torch)
        return 0
    assert isinstance(low, float) and isinstance(high, float)
    print(f"ratio interval  [{low:.12f}, {high:.12f}]")
    print(f"log-ratio       [{_log(low):.12f}, {math.log(high):.12f}]")
    _print_twins(chosen, low, high)
    return 0


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _print_twins(chosen: Any, low: float, high: float) -> None:
    """Stock settings with the same gradient, where there are any."""
    plain = getattr(chosen, "side", "outward") == "outward" and chosen.name != "clip_cov"
    if not (plain and getattr(chosen, "level", "token") == "token"):
        print("no stock setting of TRL or verl has this gradient")
        return
    ceiling = getattr(chosen, "ceiling", None)
    below, above = f"{1 - low:.12f}", "1e9" if math.isinf(high) else f"{high - 1:.12f}"
    print("the same gradient in")
    if ceiling is None and chosen.name != "clip_higher":
        print(f"  trustclip   clip_higher --low {below} --high {above}")
    print(f"  TRL         epsilon={below} epsilon_high={above}", end="")
    print(f" delta={ceiling}" if ceiling else "")
    print(
        f"  verl        actor.clip_ratio_low={below} actor.clip_ratio_high={above} "
        f"actor.clip_ratio_c={ceiling or 1e9:g}"
    )
    if not ceiling:
        print("              (verl's loss has a dual clip at 3 unless clip_ratio_c is raised)")


def _bounds_by_probability(chosen: Any, torch: Any) -> None:
    from trustclip.method import interval

    table = Table("p_old", "low", "high", "largest possible (1/p)", box=None, pad_edge=False)
    for p in (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        low, high = interval(chosen, p_old=torch.tensor(p, dtype=torch.float64))
        table.add_row(f"{p:g}", f"{float(low):.6f}", f"{float(high):.6f}", f"{1 / p:.4g}")
    Console().print(table)
    print("the interval depends on the token's old probability: no stock setting is its twin")


def doctor(argv: Sequence[str]) -> int:
    """Versions, devices, and the arithmetic of a schedule."""

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


def grade(argv: Sequence[str]) -> int:
    """``trustclip grade SAMPLES.jsonl [--style STYLE] [--out FILE]``."""
    from trustclip.rewards import Style

    @dataclasses.dataclass
    class Options:
        samples: tyro.conf.Positional[Path]
        """samples.jsonl of a run, or a CSV file with the columns answer and gold."""
        style: Style = "any"
        """Where the final answer stands in a completion."""
        out: Path | None = None
        """Write the graded rows to this JSON-lines file."""

    options = parse(Options, argv, "grade")
    from trustclip.recipes.offline import grade as regrade
    from trustclip.recipes.offline import read_samples
    from trustclip.recipes.records import append_jsonl

    if options.out is not None and options.out.exists():
        raise ValueError(f"{options.out} exists; choose another --out.")
    rows, counts = regrade(read_samples(options.samples), options.style)
    right = sum(row["correct"] for row in rows)
    print(f"{right} of {len(rows)} right ({right / len(rows):.1%})")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    if options.out is not None:
        append_jsonl(options.out, rows)
    return 0


def compare(argv: Sequence[str]) -> int:
    """``trustclip compare RUN_A RUN_B ...``."""

    @dataclasses.dataclass
    class Options:
        runs: tyro.conf.Positional[tuple[Path, ...]]
        """Run directories of `eval` or `demo`; the first is the reference."""

    options = parse(Options, argv, "compare")
    from trustclip.recipes.offline import compare_runs

    Console().print(compare_runs(options.runs))
    return 0


def decontaminate(argv: Sequence[str]) -> int:
    """Test problems that stand in a training set."""
    from trustclip.tasks import decontaminate as module

    return module.run(parse(module.DecontaminateConfig, argv, "decontaminate"))


def paper(argv: Sequence[str]) -> int:
    """The audit of the paper's tables."""

    @dataclasses.dataclass
    class Options:
        pass

    parse(Options, argv, "paper")
    from trustclip.report import paper as module

    module.render(module.audit())
    return 0
