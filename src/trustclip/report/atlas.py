"""The atlas as a page: every method's gradient weight, with sliders for its hyper-parameters.

The page computes no formula: it reads the weights from grids computed by the methods themselves,
one grid for every position of the sliders.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any, get_args, get_origin, get_type_hints

import torch
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

import trustclip
from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import method
from trustclip.report.draw.marks import DARK_PALETTE, PALETTE
from trustclip.report.weights import P_OLD, curve, weights

#: Ratios and old probabilities of the grids; of the latter, `P_OLD` is the one first shown. No
#: ratio is a round number: on a bound, rounding would decide.
RATIOS = torch.arange(136, dtype=torch.float64) * 0.025 + 0.0091
PROBABILITIES = (0.001, 0.003, 0.01, 0.03, 0.1, P_OLD, 0.5, 0.7, 0.9, 0.99)
#: Positions of a slider around a default, as factors of it.
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
#: Positions where there is no default: of thresholds, and of what must be above 1.
POSITIONS = ((0.02, 0.05, 0.1, 0.15, 0.3), (2.0, 3.0, 10.0))
#: Most positions of all sliders of a method together.
MOST = 350
#: Steps of 1 in the stored weights: they are rounded to a thousandth.
SCALE = 1000
#: Stored where the values of the sliders are not a valid combination.
NEVER = 2**31 - 1


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
    ours = weights(chosen, RATIOS, probabilities)
    others = (replace(chosen, **{dial.name: value}) for value in dial.values)  # type: ignore[type-var]
    return any(not torch.allclose(weights(o, RATIOS, probabilities), ours) for o in others)


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
    """A method on the page.

    Args:
      name: of the method.
      does: first line of its docstring.
      dials: its sliders.
      fixed: hyper-parameters that matter and have no slider, at their defaults.
      probabilities: old probabilities that it is drawn for; one where they make no difference.
      grid: weights in steps of 1 / `SCALE`, int32, deflated.
    """

    name: str
    does: str
    dials: list[Dial]
    fixed: dict[str, Any]
    probabilities: tuple[float, ...]
    grid: bytes


@cache
def entry(name: str) -> Entry:
    """A method with its grid: a block [2, probabilities, ratios] for each setting of its dials."""
    chosen, every = method(name), dials(name)
    shown = [*_within(every, MOST)]
    varied = [replace(chosen, **{d.name: v}) for d in shown for v in d.values]  # type: ignore[type-var]
    probabilities = max(map(_probabilities, [chosen, *varied]), key=len)
    blocks = []
    for values in product(*(dial.values for dial in shown)):
        setting = dict(zip((dial.name for dial in shown), values, strict=True))
        try:
            made = replace(chosen, **setting)  # type: ignore[type-var]
            blocks.append(weights(made, RATIOS, probabilities))
        except ValueError:  # values that are valid alone but not together
            blocks.append(torch.full((2, len(probabilities), len(RATIOS)), torch.inf).double())
    steps = (torch.stack(blocks) * SCALE).round().clamp(-NEVER, NEVER).to(torch.int32)
    fixed = {d.name: d.values[d.start] for d in every if d not in shown}
    does = (type(chosen).__doc__ or "").strip().splitlines()[0].partition(": ")[2]
    packed = zlib.compress(steps.numpy().astype("<i4").tobytes(), 9)
    return Entry(name, does, shown, fixed, probabilities, packed)


def _within(every: Sequence[Dial], most: int) -> Iterator[Dial]:
    """Dials in order, as long as all positions together stay within ``most``."""
    count = 1
    for dial in every:
        if count * len(dial.values) <= most:
            count *= len(dial.values)
            yield dial


def atlas_page() -> str:
    """The page as one self-contained HTML file."""
    data = {
        name: {
            "does": one.does,
            "dials": [{"name": d.name, "values": d.values, "start": d.start} for d in one.dials],
            "fixed": one.fixed,
            "probabilities": one.probabilities,
            "grid": base64.b64encode(one.grid).decode(),
        }
        for name, one in ((name, entry(name)) for name in methods())
    }
    ratios = [round(r, 6) for r in RATIOS.tolist()]
    loader = PackageLoader("trustclip.report", "templates")
    template = Environment(loader=loader, autoescape=True).get_template("atlas.html.j2")
    whole = {"methods": data, "ratios": ratios, "scale": SCALE, "never": NEVER, "first": P_OLD}
    return template.render(
        data=Markup(json.dumps(whole).replace("<", "\\u003c")),
        version=trustclip.__version__,
        light=PALETTE[:2],
        dark=DARK_PALETTE[:2],
    )


def every_gate() -> str:
    """SVG of the gates of all methods at their defaults."""
    from trustclip.report.draw.figures import gates

    return gates({name: curve(method(name)) for name in methods()})
