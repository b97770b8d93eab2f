"""The thresholds of a method, widened or narrowed together."""

from dataclasses import replace
from typing import get_type_hints

from torch import Tensor

from trustclip.constraints.base import Method, Trait, value
from trustclip.support.checked import UpToOne
from trustclip.support.marks import marks

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
    values = {name: value(method, name) for name in NAMES if hasattr(method, name)}
    return {name: number for name, number in values.items() if isinstance(number, float) and number}


def widest(method: Method) -> float:
    """The largest factor that `scale_thresholds` takes: at it, an offset below ratio 1 is 1.

    Example:
      >>> import trustclip as tc
      >>> widest(tc.method("clip_higher")), widest(tc.method("atr"))
      (5.0, inf)
    """
    offsets = [number for name, number in thresholds(method).items() if _is_offset(method, name)]
    return 1 / max(offsets) if offsets else float("inf")


def _is_offset(method: Method, name: str) -> bool:
    """Whether a threshold is at most 1, as an offset below ratio 1 is."""
    hint = get_type_hints(type(method), include_extras=True).get(name)
    return {*marks(UpToOne)} <= {*marks(hint)}


def scale_thresholds(method: Method, factor: float) -> Method:
    """The method with every threshold times a factor, at most `widest`, so that their ratios stay.

    Example:
      >>> import trustclip as tc
      >>> scale_thresholds(tc.method("clip_higher"), 0.5)
      ClipHigher(low=0.1, high=0.14, side='outward', level='token')
    """
    scaled = {name: number * factor for name, number in thresholds(method).items()}
    for name, number in scaled.items():
        if _is_offset(method, name):
            scaled[name] = min(number, 1.0)  # it may round to more
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
    deltas = [least_kl(part) for part in getattr(method, "parts", ())]
    if any(name.startswith("kl_") for name in method.requires):
        delta = value(method, "delta") if hasattr(method, "delta") else None
        deltas.append(float(delta.min()) if isinstance(delta, Tensor) else delta)
    return min((x for x in deltas if isinstance(x, int | float)), default=None)
