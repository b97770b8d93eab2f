"""Commands about the constraints themselves."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trustclip.arguments import method_from, parse


def methods(argv: Sequence[str]) -> int:
    """The constraints, one line each; ``--figure FILE`` draws their gates."""

    @dataclasses.dataclass
    class Options:
        figure: Path | None = None
        """Write a picture (SVG) of every method's gate to this file."""
        page: Path | None = None
        """Write a page (HTML) with a slider for every hyper-parameter to this file."""
        markdown: bool = False
        """Print the table in Markdown."""

    options = parse(Options, argv, "methods")
    if options.figure is not None:
        from trustclip.report.atlas import every_gate

        options.figure.write_text(every_gate(), encoding="utf-8")
        print(options.figure)
        return 0
    if options.page is not None:
        from trustclip.report.atlas_page import atlas_page

        options.page.write_text(atlas_page(), encoding="utf-8")
        print(options.page)
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
            "stock TRL and verl with the same gradient. Of a threshold that adapts, such as\n"
            '--delta "{controller: target_gate, share: 0.02}": the intervals of its initial value\n'
            "and of the ends of its range. Methods: " + ", ".join(_methods())
        )
        return 0 if argv else 2
    import torch

    from trustclip.adaptive import Adaptive
    from trustclip.method import interval, method_class

    name, *rest = argv
    cls = method_class(name)
    chosen = method_from(cls, rest, f"bounds {name}")
    initial = chosen.inner if isinstance(chosen, Adaptive) else chosen
    print(initial)
    try:
        low, high = interval(initial)
    except ValueError as error:
        if "p_old" not in str(error):
            raise
        if isinstance(chosen, Adaptive):
            print("at its initial threshold, which adapts:")
        _bounds_by_probability(initial, torch)
        return 0
    if isinstance(chosen, Adaptive):
        return _bounds_of_thresholds(chosen)
    assert isinstance(low, float) and isinstance(high, float)
    print(f"ratio interval  [{low:.12f}, {high:.12f}]")
    print(f"log-ratio       [{_log(low):.12f}, {math.log(high):.12f}]")
    _print_twins(chosen, low, high)
    return 0


def _bounds_of_thresholds(chosen: Any) -> int:
    """The interval of the initial thresholds, and of each at the ends of its range."""
    from trustclip.method import interval

    table = Table("threshold", "", "low", "high", box=None, pad_edge=False)
    for name, one in chosen.controllers:
        start = getattr(chosen.inner, name)
        lowest, highest = one.between(start)
        for where, value in (("initial", start), ("lowest", lowest), ("highest", highest)):
            low, high = interval(dataclasses.replace(chosen.inner, **{name: value}))
            table.add_row(f"{name} = {value:g}", where, f"{low:.6f}", f"{high:.6f}")
    Console().print(table)
    print("the threshold adapts: no stock setting of TRL or verl is its twin")
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


def theory(argv: Sequence[str]) -> int:
    """The paper's theorems, computed on both sides."""

    @dataclasses.dataclass
    class Options:
        figures: Path | None = None
        """Draw the figures into this folder."""

    options = parse(Options, argv, "theory")
    from trustclip.theory import run_theory

    return run_theory(Console(), options.figures)


def tabular(argv: Sequence[str]) -> int:
    """Methods on a bandit and a tree, where everything is exact."""
    from trustclip.arguments import taken
    from trustclip.tabular import PRESETS, TabularSettings, run_tabular

    rest, out = taken(list(argv), "--out")
    settings = parse(TabularSettings, rest, "tabular", PRESETS)
    run_tabular(settings, Console(), None if out is None else Path(out))
    return 0


def control(argv: Sequence[str]) -> int:
    """Methods in PPO on Gymnasium environments."""
    from trustclip.control import PRESETS, ControlSettings, run_control

    settings = parse(ControlSettings, argv, "control", PRESETS)
    run_control(settings, Console())
    return 0
