"""The thresholds of a method, widened or narrowed together."""

from dataclasses import fields, replace
from typing import get_type_hints

from torch import Tensor

from trustclip.constraints.base import Method, Trait
from trustclip.support.checked import UpToOne

#: Names of hyper-parameters that bound a divergence, a ratio or a log-ratio: the gate closes on
#: fewer tokens the larger they are.
NAMES = (
    *("delta", "epsilon", "low", "high", "epsilon_low", "epsilon_high", "log_low", "log_high"),
    *("positive_low", "positive_high", "negative_low", "negative_high"),
)


def thresholds(method: Method) -> dict[str, float]:
    """The thresholds of a method by name; empty where no threshold decides what it cuts.

    Example:
      >>> import trustclip as tc
      >>> thresholds(tc.method("clip_higher")), thresholds(tc.method("cispo"))
      ({'low': 0.2, 'high': 0.28}, {})
    """
    if Trait.CUTS not in method.traits:
        return {}
    values = {name: getattr(method, name, None) for name in NAMES}
    if "delta" in type(method).__dict__ and values["delta"] is None:
        values["delta"] = method.value("delta") or None  # its paper's value, if used
    return {k: v for k, v in values.items() if v is not None and not isinstance(v, Tensor)}


def widest(method: Method) -> float:
    """The largest factor that `scale_thresholds` takes: at it, an offset below ratio 1 is 1.

    Example:
      >>> import trustclip as tc
      >>> widest(tc.method("clip_higher")), widest(tc.method("atr"))
      (5.0, inf)
    """
    hints = get_type_hints(type(method), include_extras=True)
    at_most_one = [v for name, v in thresholds(method).items() if hints.get(name) == UpToOne]
    return 1 / max(at_most_one) if at_most_one else float("inf")


def scale_thresholds(method: Method, factor: float) -> Method:
    """The method with every threshold times a factor, at most `widest`, so that their ratios stay.

    Example:
      >>> import trustclip as tc
      >>> scale_thresholds(tc.method("clip_higher"), 0.5)
      ClipHigher(low=0.1, high=0.14, side='outward', level='token')
    """
    hints = get_type_hints(type(method), include_extras=True)
    scaled = {name: value * factor for name, value in thresholds(method).items()}
    for name, value in scaled.items():
        if hints.get(name) == UpToOne:
            scaled[name] = min(value, 1.0)  # it may round to more
    return replace(method, **scaled)  # type: ignore[type-var]


def least_kl(method: Method) -> float | None:
    """The smallest threshold, nats, that a method or a part of it sets an exact KL divergence.

    None where it sets none. Of a threshold for each token, it is the smallest.

    Example:
      >>> import trustclip as tc
      >>> least_kl(tc.method("full_kl", delta=0.05)), least_kl(tc.method("atr", delta=1e-6))
      (0.05, None)
      >>> least_kl(tc.method("full_kl") & tc.method("truly_ppo"))
      0.035
    """
    values = [getattr(method, f.name) for f in fields(method)]  # type: ignore[arg-type]
    deltas = [least_kl(part) for part in values if isinstance(part, Method)]
    if any(name.startswith("kl_") for name in method.requires):
        delta = method.value("delta") if hasattr(method, "delta") else None
        deltas.append(float(delta.min()) if isinstance(delta, Tensor) else delta)
    return min((x for x in deltas if isinstance(x, int | float)), default=None)
