"""The atlas as a page: every method's gradient weight, with sliders for its hyper-parameters.

The page computes weights and intervals itself, with rules of its own in JavaScript
(``templates/algebra.js.j2``), which are tested against the methods; this module decides what can be
moved, and between which values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import combinations
from typing import Any, get_args, get_origin, get_type_hints

import torch
from markupsafe import Markup

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import interval, method
from trustclip.report.html import embedded, page_of
from trustclip.report.weights import P_OLD, weights
from trustclip_lab.pages import templates
from trustclip_lab.pages.about import about

#: Ratios and old probabilities that are drawn; of the latter, `P_OLD` is the one first shown. No
#: ratio is a round number: on a bound, rounding would decide.
RATIOS = torch.arange(136, dtype=torch.float64) * 0.025 + 0.0091
PROBABILITIES = (0.001, 0.003, 0.01, 0.03, 0.1, P_OLD, 0.5, 0.7, 0.9, 0.99)
#: Positions of a slider around a default, as factors of it: a quarter to four times.
FACTORS = tuple(2 ** (k / 4) for k in range(-8, 9))
#: Positions where there is no default: of thresholds, and of what must be above 1.
POSITIONS = ((0.02, 0.05, 0.1, 0.15, 0.3), (2.0, 3.0, 10.0))
#: Methods in one picture; more could not be distinguished.
MOST_COMPARED = 4


@dataclass(frozen=True)
class Dial:
    """A hyper-parameter and the values it can be set to."""

    name: str
    values: tuple[Any, ...]
    start: int


@cache
def dials(name: str) -> list[Dial]:
    """Hyper-parameters of a method that change its weights, with positions its class allows.

    Example:
      >>> [(dial.name, dial.values[dial.start]) for dial in dials("clip_higher")]
      [('low', 0.2), ('high', 0.28), ('side', 'outward')]
    """
    chosen = method(name)
    hints = get_type_hints(type(chosen), include_extras=False)
    sliders = []
    for item in fields(chosen):  # type: ignore[arg-type]
        dial = _dial(chosen, item.name, getattr(chosen, item.name), hints[item.name])
        if dial is not None and _matters(chosen, dial):
            sliders.append(dial)
    return sliders


def _dial(chosen: Method, name: str, default: Any, hint: Any) -> Dial | None:
    if get_origin(hint) is not None and isinstance(default, str):
        candidates: Sequence[Any] = get_args(hint)
    elif isinstance(default, float):
        candidates = [float(f"{default * factor:.4g}") for factor in FACTORS]
    elif default is None and float in get_args(hint):
        positions = [c for c in POSITIONS if any(_with(chosen, name, value) for value in c)]
        candidates = [None, *(positions[0] if positions else ())]
    else:
        return None
    values = tuple(value for value in candidates if _with(chosen, name, value) is not None)
    return Dial(name, values, values.index(default)) if len(values) > 1 else None


def _with(chosen: Method, name: str, value: Any) -> Method | None:
    """The method with another value; None where that is not allowed, or cannot be drawn."""
    try:
        variant = replace(chosen, **{name: value})  # type: ignore[type-var]
        weights(variant, RATIOS[:3], (P_OLD,))
        return variant
    except ValueError:
        return None


def _matters(chosen: Method, dial: Dial) -> bool:
    probabilities = (P_OLD,) if chosen.statistics_over else PROBABILITIES
    ratios = RATIOS[::8] if chosen.statistics_over == "micro_batch" else RATIOS
    ours = weights(chosen, ratios, probabilities)
    far = {dial.values[0], dial.values[-1], *(v for v in dial.values if not isinstance(v, float))}
    others = (replace(chosen, **{dial.name: value}) for value in far)  # type: ignore[type-var]
    return any(not torch.allclose(weights(o, ratios, probabilities), ours) for o in others)


@dataclass(frozen=True)
class Entry:
    """A method on the page.

    Args:
      spec: the method at its defaults, as `Method.to_dict` gives it.
      dials: its sliders.
      conflicts: (dial, position, other dial, position) that do not fit together.
      unbounded: why it has no interval; empty if it has one.
      unstated: (dial, position) at which it has none, although it has one at its defaults.
    """

    spec: dict[str, Any]
    dials: list[Dial]
    conflicts: list[tuple[int, int, int, int]]
    unbounded: str
    unstated: list[tuple[int, int]]


def entry(name: str) -> Entry:
    """What the page needs to know of a method."""
    chosen, every = method(name), dials(name)
    places = [(d, i) for d, dial in enumerate(every) for i in range(len(dial.values))]
    setting = {(d, i): {every[d].name: every[d].values[i]} for d, i in places}
    conflicts = [
        (*one, *other)
        for one, other in combinations(places, 2)
        if one[0] != other[0] and _with_all(chosen, setting[one] | setting[other]) is None
    ]
    reason = _why_unbounded(chosen)
    variants = {place: _with_all(chosen, setting[place]) for place in places}
    unstated = [p for p, m in variants.items() if not reason and m and _why_unbounded(m)]
    return Entry(chosen.to_dict(), every, conflicts, reason, unstated)


def _with_all(chosen: Method, setting: dict[str, Any]) -> Method | None:
    try:
        return replace(chosen, **setting)  # type: ignore[type-var]
    except ValueError:
        return None


def _why_unbounded(chosen: Method) -> str:
    try:
        interval(chosen, torch.tensor([P_OLD], dtype=torch.float64))
    except ValueError as error:
        return str(error)
    return ""


def atlas_page() -> str:
    """The page as one self-contained HTML file."""
    data = {
        name: {
            "spec": one.spec,
            "dials": [{"name": d.name, "values": d.values, "start": d.start} for d in one.dials],
            "conflicts": one.conflicts,
            "unbounded": one.unbounded,
            "unstated": one.unstated,
        }
        for name, one in {name: entry(name) for name in methods()}.items()
    }
    whole = {
        "methods": data,
        "ratios": [round(r, 6) for r in RATIOS.tolist()],
        "probabilities": PROBABILITIES,
        "first": P_OLD,
    }
    pages = templates()
    scripts = [Markup(pages.get_template(n).render()) for n in ("algebra.js.j2", "atlas.js.j2")]
    return page_of(
        pages.get_template("atlas.html.j2"),
        scripts,
        data=embedded(whole),
        about={name: about(cls) for name, cls in methods().items()},
        most=MOST_COMPARED,
    )
