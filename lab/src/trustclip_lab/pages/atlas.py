"""The atlas as a page: every method's gradient weight, with sliders where its gate is an interval.

The page draws numbers that Python has computed, and no formula of any method stands in it: bounds
of intervals (`trustclip.report.gates`), and weights over the ratio of all others at their defaults
(`trustclip.report.weights`).
"""

from dataclasses import fields
from math import isfinite
from typing import Any

import numpy as np
import torch

from trustclip.constraints.base import Method, methods
from trustclip.constraints.registry import interval, method
from trustclip.report import gates
from trustclip.report.html import embedded, page_of, rendered
from trustclip.report.weights import P_OLD, curve, weights
from trustclip_lab.pages import templates
from trustclip_lab.pages.about import about

#: Ratios at which weights are read off: none is a round number, for on a bound rounding decides.
RATIOS = [round(0.0091 + 0.025 * k, 4) for k in range(136)]
#: Old probabilities that are drawn; `P_OLD` is the one first shown.
PROBABILITIES = (0.001, 0.003, 0.01, 0.03, 0.1, P_OLD, 0.5, 0.7, 0.9, 0.99)
#: Change of a slope that is none.
_STRAIGHT = 1e-6
#: Methods in one picture; more could not be distinguished.
MOST_COMPARED = 4


def entry(name: str) -> dict[str, Any]:
    """What the page holds of a method.

    Returns:
      ``spec``, the method at its defaults; ``dials``, what can be moved, each with its name, values
      and the place of the default; and of an interval its bounds, ``interval``. Of another method
      ``drawn``, for each of `PROBABILITIES`, or once where they make no difference: ``curve``
      (ratios, weights where A > 0, weights where A < 0), and ``interval``, two ratios or the reason
      why there are none.

    Example:
      >>> [dial["name"] for dial in entry("clip_higher")["dials"]]
      ['low', 'high', 'side']
      >>> entry("reinforce")["dials"], len(entry("reinforce")["drawn"])
      ([], 1)
    """
    chosen = method(name)
    found = gates.interval(chosen)
    if found is None:
        return {"spec": chosen.to_dict(), "dials": [], "drawn": _drawn(chosen)}
    values = dict(found["dials"])
    if "side" in (item.name for item in fields(chosen)):  # type: ignore[arg-type]
        values["side"] = gates.SIDES
    dials = [
        {"name": name, "values": several, "start": several.index(getattr(chosen, name))}
        for name, several in values.items()
    ]
    return {"spec": chosen.to_dict(), "dials": dials, "interval": found}


def _drawn(chosen: Method) -> list[dict[str, Any]]:
    return [
        {"curve": _corners(chosen, p), "interval": _interval(chosen, p)}
        for p in (PROBABILITIES if _varies(chosen) else (P_OLD,))
    ]


def _varies(chosen: Method) -> bool:
    """Whether the old probability of a token makes a difference; of a lone one to no statistic."""
    if chosen.statistics_over:
        return False
    every = weights(chosen, torch.tensor(RATIOS, dtype=torch.float64), PROBABILITIES)
    return not torch.allclose(every, every[:, :1])


def _corners(chosen: Method, p: float) -> list[list[float]]:
    """A curve without the places at which it goes on as it came."""
    ratios, *weights = map(np.array, curve(chosen, 137, p))
    slopes = np.diff(weights) / np.diff(ratios)
    turns = (np.abs(np.diff(slopes)) > _STRAIGHT).any(axis=0)
    kept = np.concatenate([[True], turns, [True]])
    return [row[kept].round(4).tolist() for row in (ratios, *weights)]


def _interval(chosen: Method, p: float) -> list[float | None] | str:
    try:
        bounds = interval(chosen, torch.tensor([p], dtype=torch.float64))
    except ValueError as error:
        return str(error)
    return [bound if isfinite(bound) else None for bound in map(float, bounds)]


def atlas_page() -> str:
    """The page as one self-contained HTML file."""
    pages = templates()
    data = {
        "methods": {name: entry(name) for name in methods()},
        "ratios": RATIOS,
        "probabilities": PROBABILITIES,
        "first": P_OLD,
    }
    return page_of(
        pages.get_template("atlas.html.j2"),
        rendered("gates.js.j2", "atlas.js.j2", pages=pages),
        data=embedded(data),
        about={name: about(cls) for name, cls in methods().items()},
        most=MOST_COMPARED,
    )
