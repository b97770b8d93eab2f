"""Commands about the constraints themselves."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

import trustclip
from trustclip.cli.arguments import method_from, reads, split_option
from trustclip.support.imports import import_object
from trustclip.support.marks import Also, Metavar, Positional
from trustclip.support.terminal import Terminal, say


@dataclasses.dataclass
class Methods:
    """The constraints and their hyper-parameters."""

    figure: Path | None = None
    """Write a picture (SVG) of every method's gate to this file."""
    only: str = ""
    """Names of the methods in the picture, separated by commas; all when empty."""
    engines: bool = False
    """List the losses of TRL, verl, prime-rl and other engines as methods instead."""


@reads(Methods)
def methods(options: Methods) -> int:
    if options.figure is not None:
        from trustclip.report.draw.figures import every_gate

        names = [name.strip() for name in options.only.split(",") if name.strip()]
        drawn = {name: trustclip.method(name) for name in names or trustclip.methods()}
        options.figure.write_text(every_gate(drawn), encoding="utf-8")
        say(options.figure)
        return 0
    if options.engines:
        return _engines()
    rows = [_method_row(name, cls) for name, cls in trustclip.methods().items()]
    table = Table(box=None, pad_edge=False)
    for title in _HEADER:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Terminal().print(table)
    say("\nother names: " + "; ".join(f"{a} is {of}" for a, of in _other_names()))
    return 0


def _other_names() -> list[tuple[str, str]]:
    """Aliases of methods, each with the command line that it abbreviates."""
    from trustclip.constraints.base import ALIASES

    return [
        (alias, " ".join([name, *(f"--{key} {value}" for key, value in arguments.items())]))
        for alias, (name, arguments) in ALIASES.items()
    ]


def _engines() -> int:
    from trustclip.constraints import rosetta

    console = Terminal()
    for engine in rosetta.ENGINES.values():
        table = Table(*rosetta.HEADER, title=rosetta.title(engine), box=None, pad_edge=False)
        table.title_justify = "left"
        for column in table.columns:
            column.overflow = "fold"
        for row in engine.rows:
            table.add_row(*rosetta.cells(row))
        console.print(table)
        console.print()
    return 0


#: Columns of the table of methods; an engine is named if it trains the method's defaults.
_HEADER = ("method", "what it does", "defaults", "trains in")


def _method_row(name: str, cls: Any) -> tuple[str, str, str, str]:
    from trustclip.engines.limits import trains_in

    first = (cls.__doc__ or "").strip().splitlines()[0].partition(": ")[2]
    defaults = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(cls))
    return name, first, defaults, ", ".join(trains_in(cls()))


_BOUNDS = """\
Print the ratio interval inside which the gate of METHOD never closes, and the settings
of stock TRL and verl with the same gradient. If a threshold adapts, such as --delta
"{controller: target_gate, share: 0.02}", print the intervals at its initial value and
at the ends of its range. --plot FILE.svg draws the weight of a token's gradient over
its ratio; METHOD may be file.py:Class."""
_CHECK = """\
Find out whether METHOD is right: its gradient, its gate and what it declares are compared on
small made-up batches. METHOD may be your own: file.py:Class. Exit status 1: it is wrong."""


def _method_of(argv: Sequence[str], command: str, does: str) -> Any:
    """The method on a command line; where there is none, print the usage and exit."""
    if not argv or argv[0].startswith("-"):
        usage = f"usage: trustclip {command} METHOD [--HYPER-PARAMETER VALUE ...]"
        say(f"{usage}\n\n{does} Methods: {', '.join(trustclip.methods())}")
        raise SystemExit(0 if argv else 2)
    name, *rest = argv
    method, more = method_from(name, rest, f"{command} {name}")
    if more:
        raise ValueError(f"unexpected argument {more[0]!r}; see trustclip {command} {name} --help.")
    return method


def check(argv: Sequence[str]) -> int:
    found = trustclip.check(_method_of(argv, "check", _CHECK))
    say(found)
    return 0 if found else 1


@dataclasses.dataclass
class Conform:
    """Whether the loss of any trainer has the gradient of a method, on batches made to be hard.

    A few lines wrap the loss: a function that names what it takes, of logp, logp_old, advantages,
    mask and logp_rollout, each [batch, time], and returns a scalar. The exit status is 1 where it
    has another gradient.
    """

    function: Annotated[str, Positional(), Metavar("FILE.py:FUNCTION")]
    """The wrapped loss: file.py:function, or package.module:function."""
    method: Annotated[str, Also(("--as",)), Metavar("METHOD")] = ""
    """The method that the loss is meant to be, such as "tis(clip_higher(0.2, 0.272), 2)"."""
    aggregation: str = ""
    """How the loss must add up its tokens, such as token_mean; any way when empty."""
    without: str = ""
    """Names of batches that the trainer never makes, separated by commas, such as bfloat16."""


@reads(Conform)
def conform(options: Conform) -> int:
    if not options.method:
        raise ValueError('--as is missing: name the method, such as --as "clip(0.2)".')
    loss = import_object(options.function, "loss")
    without = [name.strip() for name in options.without.split(",") if name.strip()]
    found = trustclip.conform(loss, options.method, options.aggregation or None, without)
    say(found)
    return 0 if found else 1


def bounds(argv: Sequence[str]) -> int:
    from trustclip.constraints.adaptive import Adaptive

    rest, file = split_option([*argv], "--plot")
    method = _method_of(rest, "bounds", _BOUNDS)
    if file is not None:
        _plot(method, Path(file))
    elif isinstance(method, Adaptive):
        _print_thresholds(method)
    else:
        say(method)
        _print_interval(method)
        print_twins(method)
    return 0


def _print_interval(method: Any) -> None:
    """Print the interval, a table of it by old probability, or why there is none."""
    from trustclip.constraints.registry import interval

    try:
        low, high = interval(method)
    except ValueError as error:
        if "p_old" in str(error):
            _print_by_probability(method)
        else:
            say((method.__doc__ or "").strip().splitlines()[0])
            say(f"no interval     {error}")
        return
    assert isinstance(low, float) and isinstance(high, float)
    say(f"ratio interval  [{low:.12f}, {high:.12f}]")
    logs = (math.log(ratio) if ratio > 0 else -math.inf for ratio in (low, high))
    say("log-ratio       [{:.12f}, {:.12f}]".format(*logs))


def _plot(method: Any, file: Path) -> None:
    """Draw the weight of a token's gradient over its ratio."""
    from trustclip.report.draw.figures import every_gate

    file.write_text(every_gate({str(method): method}), encoding="utf-8")
    say(file)


def _print_thresholds(method: Any) -> None:
    """The interval at the initial thresholds, and with each at the ends of its range."""
    from trustclip.constraints.registry import interval

    say(method.inner)
    try:
        interval(method.inner)
    except ValueError:
        say("at its initial threshold, which adapts:")
        return _print_interval(method.inner)
    table = Table("threshold", "", "low", "high", box=None, pad_edge=False)
    for name, controller in method.controllers:
        start = getattr(method.inner, name)
        lowest, highest = controller.between(start)
        for where, value in (("initial", start), ("lowest", lowest), ("highest", highest)):
            low, high = interval(dataclasses.replace(method.inner, **{name: value}))
            table.add_row(f"{name} = {value:g}", where, f"{low:.6f}", f"{high:.6f}")
    Terminal().print(table)
    say("the threshold adapts: no stock setting of TRL or verl is its twin")


def _print_by_probability(method: Any) -> None:
    import torch

    from trustclip.constraints.registry import interval

    table = Table("p_old", "low", "high", "largest possible (1/p)", box=None, pad_edge=False)
    for p in (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        low, high = interval(method, p_old=torch.tensor(p, dtype=torch.float64))
        table.add_row(f"{p:g}", f"{float(low):.6f}", f"{float(high):.6f}", f"{1 / p:.4g}")
    Terminal().print(table)
    say("the interval depends on the token's old probability")


def print_twins(method: Any) -> None:
    """Print `Method.twins` in the notation of each trainer."""
    if not method.twins:
        say("no setting of stock TRL or verl is known to have this gradient")
        return
    where = ", where a sequence's tokens share their advantage," if _by_sequence(method) else ""
    say(f"the same gradient{where} in")
    width = max(map(len, method.twins))
    for trainer, settings in method.twins.items():
        if trainer == "trustclip":
            words = [f"--{key} {value}" for key, value in settings.items() if key != "name"]
            words = [settings["name"], *words]
        else:
            words = [f"{key}={value}" for key, value in settings.items()]
        say(f"  {trainer:<{width}}  {' '.join(words)}")


def _by_sequence(method: Any) -> bool:
    """Whether a ratio of the whole sequence takes part, which trainers give one advantage."""
    parts = getattr(method, "parts", ())
    own = not parts and getattr(method, "level", "token") == "sequence"
    return own or any(map(_by_sequence, parts))
