"""The atlas as a page: every method's gradient weight, with sliders for its hyper-parameters.

The page computes no formula: it reads weights, jumps and intervals from grids computed by the
methods themselves, one grid for every position of the sliders.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

import trustclip
from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import interval, method
from trustclip.report.about import about
from trustclip.report.draw.marks import DARK_PALETTE, PALETTE
from trustclip.report.html import embedded, environment, rendered, script_hash
from trustclip.report.weights import P_OLD, curve, jumps, weights

#: Ratios and old probabilities of the grids; of the latter, `P_OLD` is the one first shown. No
#: ratio is a round number: on a bound, rounding would decide.
RATIOS = torch.arange(136, dtype=torch.float64) * 0.025 + 0.0091
PROBABILITIES = (0.001, 0.003, 0.01, 0.03, 0.1, P_OLD, 0.5, 0.7, 0.9, 0.99)
#: Positions of a slider around a default, as factors of it.
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
#: Positions where there is no default: of thresholds, and of what must be above 1.
POSITIONS = ((0.02, 0.05, 0.1, 0.15, 0.3), (2.0, 3.0, 10.0))
#: Most positions of all sliders of a method together; fewer of one that measures over a
#: micro-batch, whose every weight takes a batch of its own.
MOST, MOST_ALONE = 350, 7
#: Steps of 1 in the stored weights: they are rounded to a thousandth.
SCALE = 1000
#: Steps of 1 in stored ratios: of jumps, and of the bounds of intervals.
RATIO_SCALE = 1_000_000
#: Stored where the values of the sliders are not a valid combination; an infinite bound; none.
NEVER, INFINITE, NONE = 2**31 - 1, 2**31 - 2, 2**31 - 3


#: Methods in one picture; more could not be told apart.
MOST_COMPARED = 4


@dataclass(frozen=True)
class Dial:
    """A hyper-parameter and the values it can be set to.

    Args:
      name: of the field.
      values: positions, in order.
      start: place of the default among them.
    """

    name: str
    values: tuple[Any, ...]
    start: int


def dials(name: str) -> list[Dial]:
    """Hyper-parameters of a method that change its weights, with positions its class allows.

    Example:
      >>> [(dial.name, dial.values[dial.start]) for dial in dials("clip_higher")]
      [('low', 0.2), ('high', 0.28), ('side', 'outward')]
    """
    chosen = method(name)
    hints = get_type_hints(type(chosen), include_extras=False)
    found = []
    for item in fields(chosen):  # type: ignore[arg-type]
        dial = _dial(chosen, item.name, getattr(chosen, item.name), hints[item.name])
        if dial is not None and _matters(chosen, dial):
            found.append(dial)
    return found


def _dial(chosen: Method, name: str, default: Any, hint: Any) -> Dial | None:
    if get_origin(hint) is not None and isinstance(default, str):
        candidates: Sequence[Any] = get_args(hint)
    elif isinstance(default, float):
        candidates = [float(f"{default * factor:.4g}") for factor in FACTORS]
    elif default is None and float in get_args(hint):
        allowed = [c for c in POSITIONS if any(_with(chosen, name, value) for value in c)]
        candidates = [None, *(allowed[0] if allowed else ())]
    else:
        return None
    values = tuple(value for value in candidates if _with(chosen, name, value) is not None)
    return Dial(name, values, values.index(default)) if len(values) > 1 else None


def _with(chosen: Method, name: str, value: Any) -> Method | None:
    """The method with another value; None where it cannot be, or cannot be drawn."""
    try:
        changed = replace(chosen, **{name: value})  # type: ignore[type-var]
        weights(changed, RATIOS[:3], (P_OLD,))
        return changed
    except ValueError:
        return None


def _matters(chosen: Method, dial: Dial) -> bool:
    probabilities = (P_OLD,) if chosen.statistics_over else PROBABILITIES
    ratios = RATIOS[::8] if chosen.statistics_over == "micro_batch" else RATIOS
    ours = weights(chosen, ratios, probabilities)
    others = (replace(chosen, **{dial.name: value}) for value in dial.values)  # type: ignore[type-var]
    return any(not torch.allclose(weights(o, ratios, probabilities), ours) for o in others)


def _probabilities(chosen: Method) -> tuple[float, ...]:
    """Old probabilities to draw a method for: a single one if the weights do not depend on them.

    A method that measures over a batch is drawn for a single one, too.
    """
    if chosen.statistics_over:
        return (P_OLD,)
    found = weights(chosen, RATIOS, PROBABILITIES)
    return (P_OLD,) if torch.allclose(found[:, :1].expand_as(found), found) else PROBABILITIES


@dataclass(frozen=True)
class Entry:
    """A method on the page; numbers are int32, deflated, block by block of the dials' settings.

    Args:
      name: of the method.
      dials: its sliders.
      fixed: hyper-parameters that matter and have no slider, at their defaults.
      probabilities: old probabilities that it is drawn for; one where they make no difference.
      grid: weights in steps of 1 / `SCALE`; a block is [2, probabilities, ratios].
      jumps: (row of the grid, ratio in steps of 1 / `RATIO_SCALE`, weights before and after).
      bounds: of the ratio interval, in the same steps; a block is [probabilities, 2].
      unbounded: why it has no interval; empty if it has one.
    """

    name: str
    dials: list[Dial]
    fixed: dict[str, Any]
    probabilities: tuple[float, ...]
    grid: bytes
    jumps: bytes
    bounds: bytes
    unbounded: str


@cache
def entry(name: str) -> Entry:
    """A method with a block for each setting of its dials."""
    chosen, every = method(name), dials(name)
    alone = chosen.statistics_over == "micro_batch"
    shown = [*_within(every, MOST_ALONE if alone else MOST)]
    varied = [replace(chosen, **{d.name: v}) for d in shown for v in d.values]  # type: ignore[type-var]
    probabilities = max(map(_probabilities, [chosen, *varied]), key=len)
    blocks = [_block(made, probabilities) for made in _settings(chosen, shown)]
    rows = 2 * len(probabilities)
    steps = torch.stack([block.weights for block in blocks]) * SCALE
    records = [
        [rows * i + row, round(ratio * RATIO_SCALE), round(low * SCALE), round(high * SCALE)]
        for i, block in enumerate(blocks)
        for row, ratio, low, high in block.jumps
    ]
    return Entry(
        name,
        shown,
        {d.name: d.values[d.start] for d in every if d not in shown},
        probabilities,
        _packed(steps.round().clamp(-NEVER, NEVER)),
        _packed(torch.tensor(records)),
        _packed(torch.stack([block.bounds for block in blocks])),
        _unbounded(chosen),
    )


def _packed(values: Tensor) -> bytes:
    return zlib.compress(values.to(torch.int32).numpy().astype("<i4").tobytes(), 9)


def _settings(chosen: Method, shown: Sequence[Dial]) -> Iterator[Method | None]:
    """The method at every position of its dials; None where the values do not fit together."""
    for values in product(*(dial.values for dial in shown)):
        setting = dict(zip((dial.name for dial in shown), values, strict=True))
        try:
            yield replace(chosen, **setting)  # type: ignore[type-var]
        except ValueError:
            yield None


@dataclass(frozen=True)
class _Block:
    weights: Tensor
    jumps: list[tuple[int, float, float, float]]
    bounds: Tensor


def _block(made: Method | None, probabilities: tuple[float, ...]) -> _Block:
    count = len(probabilities)
    without = torch.full((count, 2), float(NONE), dtype=torch.float64)
    try:
        if made is None:
            raise ValueError
        found = weights(made, RATIOS, probabilities)
    except ValueError:  # values that are valid alone but not together
        never = torch.full((2, count, len(RATIOS)), torch.inf, dtype=torch.float64)
        return _Block(never, [], without)
    edges = [
        (sign * count + p, sum(between) / 2, low, high)
        for sign, p, between, (low, high) in jumps(made, RATIOS, probabilities, found)
    ]
    return _Block(found, sorted(edges), _bounds(made, probabilities, without))


def _bounds(made: Method, probabilities: tuple[float, ...], without: Tensor) -> Tensor:
    """Bounds of the ratio interval in steps. Shape [probabilities, 2]."""
    try:
        ends = interval(made, torch.tensor(probabilities, dtype=torch.float64))
    except ValueError:
        return without
    both = [torch.as_tensor(end, dtype=torch.float64).expand(len(probabilities)) for end in ends]
    bounds = torch.stack(both, dim=-1)
    return (bounds * RATIO_SCALE).round().where(bounds < NONE / RATIO_SCALE, float(INFINITE))


def _unbounded(chosen: Method) -> str:
    try:
        interval(chosen, torch.tensor([P_OLD], dtype=torch.float64))
    except ValueError as error:
        return str(error)
    return ""


def _within(every: Sequence[Dial], most: int) -> Iterator[Dial]:
    """Dials in order, as long as all positions together stay within ``most``."""
    count = 1
    for dial in every:
        if count * len(dial.values) <= most:
            count *= len(dial.values)
            yield dial


def atlas_page() -> str:
    """The page as one self-contained HTML file."""
    entries = {name: entry(name) for name in methods()}
    data = {
        name: {
            "dials": [{"name": d.name, "values": d.values, "start": d.start} for d in one.dials],
            "fixed": one.fixed,
            "probabilities": one.probabilities,
            "unbounded": one.unbounded,
            **{
                part: base64.b64encode(getattr(one, part)).decode()
                for part in ("grid", "jumps", "bounds")
            },
        }
        for name, one in entries.items()
    }
    whole = {
        "methods": data,
        "ratios": [round(r, 6) for r in RATIOS.tolist()],
        "scales": [SCALE, RATIO_SCALE],
        "marks": {"never": NEVER, "infinite": INFINITE, "none": NONE},
        "first": P_OLD,
    }
    scripts = rendered("atlas.js.j2")
    return (
        environment()
        .get_template("atlas.html.j2")
        .render(
            data=embedded(whole),
            about={name: about(cls) for name, cls in methods().items()},
            scripts=scripts,
            hashes=[script_hash(script) for script in scripts],
            version=trustclip.__version__,
            colours={"light": PALETTE, "dark": DARK_PALETTE},
            most=MOST_COMPARED,
        )
    )


def every_gate(only: str = "") -> str:
    """SVG of the gates of methods at their defaults.

    Args:
      only: names, separated by commas; all methods when empty.

    Raises:
      ValueError: no method has such a name.
    """
    from trustclip.report.draw.figures import gates

    names = [name.strip() for name in only.split(",") if name.strip()] or methods()
    return gates({name: curve(method(name)) for name in names})
