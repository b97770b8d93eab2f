"""Gates as numbers, with which a page computes what a method makes of any tokens.

A method has one of two forms, or none; the page knows no formula of any method.

*An interval*: the log-ratio, of a token or of what a level covers, is within bounds. The bounds
come for many values of each hyper-parameter, so that a reader can move it.

*A curve*: gate and weight of a single token over its log-ratio, at the defaults.
"""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from trustclip.constraints.base import Method, Trait, of_own_token
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.gates import Side
from trustclip.constraints.levels import Level
from trustclip.constraints.loss import coefficient

#: What the page knows to do with an interval.
SIDES, LEVELS = get_args(Side), get_args(Level)
#: A hyper-parameter is moved between these factors of its default, in parts of an octave.
_FURTHEST, _PARTS = (1 / 64, 64.0), 16
#: Where the weight of a curve is computed, log-ratios in nats, and where its bounds are, logits of
#: the old probability: first, step, number.
LOG_RATIOS, LOGITS = (-4.0, 0.0125, 641), (-14.0, 0.1, 221)
#: No bound is looked for beyond this log-ratio, nats.
_FAR = 20.0
#: Digits of a bound and of a weight in the page.
_DIGITS, _OF_WEIGHT = 9, 6
#: Log-ratios that are no further apart are one, nats.
_SAME = 1e-9


def interval(chosen: Method) -> dict[str, Any] | None:
    """The bounds of a clip; None for another method.

    Returns:
      ``level``, where the ratio is measured; ``dials``, for each hyper-parameter that can be moved
      its ``values``; and ``low`` and ``high``: log-ratios ``at`` the values of the one, ``path``,
      that the bound depends on. An infinite bound is None.

    Example:
      >>> import trustclip as tc
      >>> found = interval(tc.method("clip_higher"))
      >>> found["low"]["path"], found["high"]["path"], sorted(found["dials"])
      ('low', 'high', ['high', 'low'])
      >>> k = found["dials"]["low"].index(0.2)
      >>> round(math.exp(found["low"]["at"][k]), 6)
      0.8
    """
    if Trait.CLIPS not in chosen.traits:
        return None
    values = {name: _values(chosen, name) for name in _numbers(chosen)}
    bounds = {
        name: [replace(chosen, **{name: v}).log_interval() for v in several]  # type: ignore[type-var]
        for name, several in values.items()
    }
    found: dict[str, Any] = {"level": getattr(chosen, "level", "token"), "dials": values}
    for side, place in (("low", 0), ("high", 1)):
        at = {name: [_written(pair[place]) for pair in pairs] for name, pairs in bounds.items()}
        moving = [name for name, several in at.items() if len(set(several)) > 1]
        if len(moving) > 1:
            return None  # no list of numbers says what two of them do together
        path = moving[0] if moving else None
        fixed = [_written(chosen.log_interval()[place])]
        found[side] = {"path": path, "at": fixed if path is None else at[path]}
    return found


def _numbers(chosen: Method) -> list[str]:
    hints = get_type_hints(type(chosen))
    return [
        name
        for name in (item.name for item in fields(chosen))  # type: ignore[arg-type]
        if float in (hints[name], *get_args(hints[name])) and getattr(chosen, name) is not None
    ]


def _values(chosen: Method, name: str) -> list[float]:
    """Values of a number from its least to its largest, which its class allows; one is its own."""
    start = getattr(chosen, name)
    steps = [round(math.log2(factor) * _PARTS) for factor in _FURTHEST]
    several = [start * 2 ** (k / _PARTS) for k in range(steps[0], steps[1] + 1)]
    if several[-1] > 1 and not _allows(chosen, name, several[-1]):
        several = [*(v for v in several if v < 1), 1.0]
    several = [start if v == start else float(f"{v:.4g}") for v in several]
    return [v for v in several if _allows(chosen, name, v)]


def _allows(chosen: Method, name: str, value: float) -> bool:
    try:
        replace(chosen, **{name: value})  # type: ignore[type-var]
    except ValueError:
        return False
    return True


def _written(bound: Tensor | float, digits: int = _DIGITS) -> float | None:
    number = float(bound)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def curve(chosen: Method) -> dict[str, Any] | None:
    """Gate and weight of a single token; None for a method that is no function of these.

    Returns:
      For positive and for negative advantages ``low`` and ``high``, the log-ratios between which
      the gate is open, at each of `LOGITS`, or once where the old probability does not matter; and
      ``weight``, the coefficient over ratio and advantage while it is, at each of `LOG_RATIOS`, or
      once; with the two grids, ``logits`` and ``ratios``. No bound is None.

    Example:
      >>> import trustclip as tc
      >>> found = curve(tc.method("dual_clip"))
      >>> [round(math.exp(high[0]), 6) for high in found["high"]], found["low"][0], found["weight"]
      ([1.2, 3.0], [None], [[1.0], [1.0]])
      >>> curve(tc.method("gmpo")) is None  # the others of its sequence take part
      True
    """
    if chosen.requires or chosen.statistics_over or not of_own_token(chosen):
        return None
    if Trait.MOVES_WITHOUT_ADVANTAGE in chosen.traits:
        return None
    if Trait.CUTS | Trait.REVERSES in chosen.traits:
        return None  # what it cuts has a gradient
    found: dict[str, list[list[float | None]]] = {"low": [], "high": [], "weight": []}
    logits = _grid(LOGITS)
    old = torch.nn.functional.logsigmoid(logits)
    for sign in (1.0, -1.0):
        far = -_FAR * torch.ones_like(old)
        bounds = [_edge(chosen, old, limit, sign) for limit in (far, -far)]
        weight = _weight(chosen, bounds, old, sign)
        if weight is None:
            return None
        found["low"].append(_once(bounds[0]))
        found["high"].append(_once(bounds[1]))
        found["weight"].append(_once(weight, _OF_WEIGHT))
    return {**found, "logits": LOGITS, "ratios": LOG_RATIOS}


def _grid(grid: tuple[float, float, int]) -> Tensor:
    first, step, number = grid
    return first + step * torch.arange(number, dtype=torch.float64)


def _edge(chosen: Method, old: Tensor, limit: Tensor, sign: float) -> Tensor:
    """Log-ratio towards a limit up to which the gate is open, infinite where it does not close."""
    inside, outside = torch.zeros_like(limit), limit
    closes = ~_kept(chosen, limit, old, sign)
    for _ in range(40 if closes.any() else 0):
        middle = (inside + outside) / 2
        kept = _kept(chosen, middle, old, sign)
        inside, outside = torch.where(kept, middle, inside), torch.where(kept, outside, middle)
    return torch.where(closes, inside, limit.sign() * torch.inf)


def _kept(chosen: Method, x: Tensor, old: Tensor, sign: float) -> Tensor:
    return chosen.surrogate(_lone(x, old, sign)).kept[:, 0]


def _lone(x: Tensor, old: Tensor, sign: float) -> TokenBatch:
    """Sequences of a single token each."""
    columns = (old + x)[:, None], old[:, None], torch.full_like(x, sign)[:, None]
    return TokenBatch(*columns, torch.ones_like(columns[0], dtype=torch.bool), density=True)


def _weight(chosen: Method, bounds: Sequence[Tensor], old: Tensor, sign: float) -> Tensor | None:
    """The weight while the gate is open; None where it also depends on the old probability, or
    where the gate is open elsewhere too."""
    x, found = _grid(LOG_RATIOS), None
    for place in (0, len(old) // 3, len(old) // 2):
        batch = _lone(x, old[place].expand_as(x), sign)
        low, high = (bound[place] for bound in bounds)
        possible = x <= -old[place]  # no probability is above 1
        inside = (low <= x) & (x <= high) & possible
        differs = possible & (chosen.surrogate(batch).kept[:, 0] != inside)
        if (differs & ((x - low).abs() > _SAME) & ((x - high).abs() > _SAME)).any():
            return None
        weight = coefficient(chosen, batch)[:, 0] / sign / x.exp()
        if found is not None and not torch.allclose(weight[inside], found[inside]):
            return None
        found = _filled(weight, inside) if found is None else found
    return found


def _filled(numbers: Tensor, known: Tensor) -> Tensor:
    """Unknown numbers as the nearest known one."""
    there = known.nonzero()[:, 0]
    places = torch.arange(len(numbers))[:, None]
    return numbers[there[(places - there).abs().argmin(dim=1)]]


def _once(numbers: Tensor, digits: int = _DIGITS) -> list[float | None]:
    """Numbers as they are written; a single one where all are the same."""
    first = numbers[:1].expand_as(numbers)
    same = torch.allclose(numbers, first, rtol=1e-9, atol=1e-12)
    return [_written(number, digits) for number in (numbers[:1] if same else numbers)]
