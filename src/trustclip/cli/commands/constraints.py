"""Commands about the constraints themselves."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.table import Column, Table

import trustclip
from trustclip.cli.arguments import given, print_help, taken
from trustclip.support.consent import import_object
from trustclip.support.marks import Also, Metavar, Positional
from trustclip.support.names import listed
from trustclip.support.terminal import Terminal, say


def _print(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table without box, whose columns are folded where the terminal is narrow."""
    columns = (Column(name, overflow="fold") for name in header)
    table = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Terminal().print(table)


@dataclasses.dataclass
class Methods:
    figure: Path | None = None
    """Write a picture (SVG) of every method's gate to this file."""
    only: str = ""
    """Names of the methods in the picture, separated by commas; all when empty."""
    engines: bool = False
    """List the losses of TRL, verl, prime-rl and other engines as methods instead."""

    def __call__(self) -> None:
        if self.figure is not None:
            names = listed(self.only) or trustclip.methods()
            _draw({name: trustclip.method(name) for name in names}, self.figure)
        elif self.engines:
            from trustclip.constraints import rosetta

            for engine in rosetta.ENGINES.values():
                _print(rosetta.HEADER, map(rosetta.cells, engine.rows), rosetta.title(engine))
                say()
        else:
            from trustclip.constraints.base import ALIASES
            from trustclip.constraints.notation import spelled

            header = ("method", "what it does", "defaults", "trains in")
            _print(header, (_row(name, cls) for name, cls in trustclip.methods().items()))
            names = (f"{a} is {spelled({'name': of, **by})}" for a, (of, by) in ALIASES.items())
            say("\nother names: " + "; ".join(names))


def _row(name: str, cls: Any) -> tuple[str, str, str, str]:
    """A method in the table; an engine is named if it trains the method's defaults."""
    from trustclip.engines.limits import trains_in

    first = (cls.__doc__ or "").strip().splitlines()[0].partition(": ")[2].replace("``", "")
    defaults = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(cls))
    return name, first, defaults, ", ".join(trains_in(cls()))


def _draw(methods: Mapping[str, trustclip.Method], file: Path) -> None:
    """Draw the weight of a token's gradient over its ratio, for each method."""
    from trustclip.report.draw.figures import every_gate

    file.write_text(every_gate(methods), encoding="utf-8")
    say(file)


_METHOD = {
    "METHOD": "A method that trustclip methods lists, or one of your own: file.py:Class.",
    "--NAME VALUE": "Set a hyper-parameter; trustclip bounds METHOD --help lists them. A number "
    'may adapt, as in --delta "{controller: target_gate, share: 0.02}".',
}
_PLOT = {"--plot FILE": "Draw the weight of a token's gradient over its ratio, as SVG, instead."}


def method_of(
    argv: Sequence[str], command: str, flags: Mapping[str, str] = _METHOD
) -> trustclip.Method:
    """The method on a command line, with its hyper-parameters, e.g. ``["atr", "--delta", "0.05"]``.

    A controller may replace a number, written as YAML: ``["--delta", "{controller:
    target_gate, share: 0.02}"]``.
    """
    from trustclip.constraints.base import method_class

    if not argv or argv[0].startswith("-"):
        print_help(argv, None, command, flags)
        raise ValueError(f"METHOD is missing; see trustclip {command} --help.")
    name, *rest = argv
    return trustclip.method(name, **given(method_class(name), rest, f"{command} {name}"))


def check(argv: Sequence[str]) -> int:
    found = trustclip.check(method_of(argv, "check"))
    say(found)
    return 0 if found else 1


@dataclasses.dataclass
class Conform:
    """Whether the loss of any trainer has the gradient of a method, on batches made to be hard.

    Wrap the loss in a few lines: a function of any of logp, logp_old, advantages, mask and
    logp_rollout, each [batch, time], that returns a scalar. The exit status is 1 if the loss has
    another gradient.
    """

    function: Annotated[str, Positional(), Metavar("FILE.py:FUNCTION")]
    """The wrapped loss: file.py:function, or package.module:function."""
    method: Annotated[str, Also(("--as",)), Metavar("METHOD")] = ""
    """The method that the loss is meant to be, such as "tis(clip_higher(0.2, 0.272), 2)"."""
    aggregation: str = ""
    """How the loss must add up its tokens, such as token_mean; any way when empty."""
    without: str = ""
    """Names of batches that the trainer never makes, separated by commas, such as bfloat16."""

    def __call__(self) -> int:
        if not self.method:
            raise ValueError('--as is missing: name the method, such as --as "clip(0.2)".')
        loss = import_object(self.function, "loss")
        without = listed(self.without)
        found = trustclip.conform(loss, self.method, self.aggregation or None, without)
        say(found)
        return 0 if found else 1


def bounds(argv: Sequence[str]) -> None:
    from trustclip.constraints.adaptive import Adaptive

    rest, file = taken(argv, *_PLOT)
    method = method_of(rest, "bounds", {**_METHOD, **_PLOT})
    if file is not None:
        _draw({str(method): method}, Path(file))
    elif isinstance(method, Adaptive):
        say(f"{method.inner}\nat its initial threshold, which adapts:")
        _print_interval(method.inner)
    else:
        say(method)
        _print_interval(method)
        print_twins(method)


def _print_interval(method: trustclip.Method) -> None:
    """Print the interval, a table of it by old probability, or why there is none."""
    try:
        low, high = trustclip.interval(method)
    except ValueError as error:
        if "p_old" in str(error):
            return _print_by_probability(method)
        say((method.__doc__ or "").strip().splitlines()[0])
        return say(f"no interval     {error}")
    assert isinstance(low, float) and isinstance(high, float)
    say(f"ratio interval  [{low:.12f}, {high:.12f}]")
    logs = (math.log(ratio) if ratio > 0 else -math.inf for ratio in (low, high))
    say("log-ratio       [{:.12f}, {:.12f}]".format(*logs))


def _print_by_probability(method: trustclip.Method) -> None:
    import torch

    rows = []
    for p in (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        ends = trustclip.interval(method, p_old=torch.tensor(p, dtype=torch.float64))
        rows.append((f"{p:g}", *(f"{float(end):.6f}" for end in ends), f"{1 / p:.4g}"))
    _print(("p_old", "low", "high", "largest possible (1/p)"), rows)
    say("the interval depends on the token's old probability")


def print_twins(method: trustclip.Method) -> None:
    """Print `Method.twins` in the notation of each trainer."""
    if not method.twins:
        return say("no setting of stock TRL or verl is known to have this gradient")
    where = ", where a sequence's tokens share their advantage," if _by_sequence(method) else ""
    say(f"the same gradient{where} in")
    width = max(map(len, method.twins))
    for trainer, settings in method.twins.items():
        ours = [settings["name"]] if "name" in settings else []
        form = "--{} {}" if ours else "{}={}"
        words = [form.format(key, value) for key, value in settings.items() if key != "name"]
        say(f"  {trainer:<{width}}  {' '.join([*ours, *words])}")


def _by_sequence(method: Any) -> bool:
    """Whether a ratio of the whole sequence takes part, which trainers give one advantage."""
    parts = getattr(method, "parts", ())
    own = not parts and getattr(method, "level", "token") == "sequence"
    return own or any(map(_by_sequence, parts))
