"""Construction of a method from its name and hyper-parameters, or from a mapping of both."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, InstanceOf
from torch import Tensor

from trustclip.constraints.adaptive import Adaptive, split
from trustclip.constraints.base import ALIASES, Method, method_class
from trustclip.constraints.intervals import ratio
from trustclip.constraints.notation import read
from trustclip.support.names import unknown


def method(name: str, **hyperparameters: Any) -> Method:
    """The method called ``name``, with the defaults of its paper unless overridden.

    Args:
      name: one of `methods`, one of their `trustclip.constraints.base.ALIASES`, or
        ``"package.module:Class"``.
      **hyperparameters: fields of the method's class; in place of a number, a controller or the
        mapping of one (see `trustclip.constraints.controllers`).

    Raises:
      ValueError: unknown name, unknown hyper-parameter, or a value out of range.

    Example:
      >>> method("kl2", delta=0.05)
      KL2(delta=0.05, side='outward')
    """
    cls = method_class(name)
    _, preset = ALIASES.get(name, (name, {}))
    hyperparameters = {**preset, **hyperparameters}
    allowed = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in allowed:
            raise ValueError(unknown("hyper-parameter", key, allowed, of=name))
    try:
        fixed, controllers = split(cls, hyperparameters, preset)
        inner = cls(**fixed)
        return Adaptive(inner=inner, controllers=controllers) if controllers else inner
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def as_method(spec: "Method | str | Mapping[str, Any]") -> Method:
    """Convert a method, its name, ``{"name": ..., **hyper-parameters}`` or its text to a method.

    Raises:
      ValueError: none of these, or what `method` raises.

    Example:
      >>> as_method({"name": "clip", "epsilon": 0.1}) == method("clip", epsilon=0.1)
      True
      >>> as_method("clip(0.1)") == method("clip", epsilon=0.1)
      True
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str):
        return as_method(read(spec)) if "(" in spec else method(spec)
    if not isinstance(spec, Mapping):
        raise ValueError(f"a method is its name or a mapping with a `name`, got {spec!r}.")
    if "name" not in spec:
        raise ValueError(f"a method needs a `name`, got {dict(spec)!r}.")
    if invalid := [key for key in spec if not isinstance(key, str)]:
        raise ValueError(f"hyper-parameters have names, got {invalid[0]!r} in {dict(spec)!r}.")
    return method(**spec)


@dataclass(frozen=True)
class Penalty:
    """What ``method + penalty`` adds: see `penalty`."""

    hyperparameters: Mapping[str, Any]

    def __radd__(self, inner: Method) -> Method:
        if not isinstance(inner, Method):
            return NotImplemented
        return method("penalty", inner=inner, **self.hyperparameters)


def penalty(divergence: str = "k2", beta: Any = 1e-3, **more: Any) -> Penalty:
    """A price on the divergence of each token, to be added to a method: ``method + penalty``.

    Args:
      divergence: ``"k2"``, ``"k3"``, ``"k3_reverse"``, ``"abs"``, or ``"k1"`` in the advantage.
      beta: price of a nat, or a controller for it.
      **more: ``anchor``, ``level`` and ``on`` of the method ``penalty``.

    Raises:
      ValueError: a value that the method ``penalty`` does not take.

    Example:
      >>> both = method("clip") + penalty("k3", 0.1, anchor="rollout")
      >>> both == method("penalty", inner="clip", divergence="k3", beta=0.1, anchor="rollout")
      True
    """
    if "inner" in more:
        raise ValueError("a penalty has no `inner`: that is the method before the +.")
    method("penalty", divergence=divergence, beta=beta, **more)  # raises here, not at the +
    return Penalty({"divergence": divergence, "beta": beta, **more})


#: A field that holds a method: a setting takes its name, a mapping or an object, and stores the
#: object, so that it is built once and handed on.
Part = Annotated[InstanceOf[Method], BeforeValidator(as_method)]


def interval(
    spec: "Method | str | Mapping[str, Any]",
    p_old: Tensor | float | None = None,
    **hyperparameters: Any,
) -> tuple[Tensor | float, Tensor | float]:
    """The ratio interval in which the gate of a method never closes, in float64.

    Args:
      spec: the constraint, its name, or a mapping; see `as_method`.
      p_old: old probabilities, a tensor or one number, for methods whose bounds depend on them.
      **hyperparameters: for a name.

    Returns:
      (low, high): floats, or tensors of the shape of ``p_old``.

    Raises:
      ValueError: the constraint is no ratio interval, or ``p_old`` is missing.

    Example:
      >>> low, high = interval("atr", delta=0.07)
      >>> round(low, 12), round(high, 12)
      (0.67097173825, 1.422216736276)
    """
    chosen = as_method({"name": spec, **hyperparameters} if hyperparameters else spec)
    given = None if p_old is None else torch.as_tensor(p_old).detach()
    low, high = (
        bound.double().exp() if isinstance(bound, Tensor) else ratio(bound)
        for bound in chosen.log_interval(given)
    )
    return low, high
