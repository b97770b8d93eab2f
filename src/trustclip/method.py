"""Methods: a named choice of divergence, threshold, gate and level, with its paper's defaults."""

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from torch import Tensor

from trustclip.batch import LogBounds, Surrogate, TokenBatch
from trustclip.checked import checked
from trustclip.names import unknown

Reduce = Callable[[Tensor], Tensor]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a bool")
    return value


_NUMBER = BeforeValidator(_no_bool)
Positive = Annotated[float, _NUMBER, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, _NUMBER, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, _NUMBER, Field(allow_inf_nan=False)]
UpToOne = Annotated[float, _NUMBER, Field(gt=0, le=1)]
AboveOne = Annotated[float, _NUMBER, Field(gt=1, allow_inf_nan=False)]

#: Class decorator of a method: a frozen, keyword-only dataclass that checks its values.
definition = checked


class Method(ABC):
    """What every method is: hyper-parameters as fields, and `surrogate`.

    A subclass is one file in ``trustclip/methods/``, or anywhere under the name
    ``"package.module:Class"``; decorated with `definition`; final. Only `surrogate` is owed; the
    rest has an answer already.
    """

    #: What `statistics` is measured over: the generation batch at the old policy, every
    #: micro-batch at the current one, or (None) nothing.
    statistics_over: ClassVar[Literal["generation", "micro_batch"] | None] = None

    #: Whether the gradient can differ from plain REINFORCE while the ratio is still 1.
    acts_on_policy: ClassVar[bool] = False

    #: Whether the gate can close (a soft one only weighs).
    cuts: ClassVar[bool] = True

    #: Whether the gradient has a factor that the objective's value does not follow (stop-gradient).
    score_form: ClassVar[bool] = False

    #: Whether ``delta`` bounds an estimate of the token's KL divergence, in nats.
    estimates_kl: ClassVar[bool] = False

    #: Hyper-parameters that may be tensors [batch, time]: a threshold for each token.
    per_token: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        """Objective to maximise and which tokens keep their gradient; see `Surrogate`."""

    @property
    def name(self) -> str:
        """Name of the method: its file's for one of ours, ``"module:Class"`` for another."""
        module = type(self).__module__
        stem = module.removeprefix("trustclip.methods.")
        return stem if stem != module else f"{module}:{type(self).__qualname__}"

    @property
    def requires(self) -> tuple[str, ...]:
        """Optional fields of `TokenBatch` that the method cannot do without."""
        return ()

    @property
    def needs_kl_gradient(self) -> bool:
        """True where the gradient of the full KL, not only of the sampled token, takes part."""
        return False

    @property
    def moves_without_advantage(self) -> bool:
        """True where a token of zero advantage can get a gradient."""
        return False

    @property
    def reverses(self) -> bool:
        """True where a gated token can get a gradient against its advantage."""
        return False

    @property
    def corrects_sampler(self) -> bool:
        """True where the weight makes up for the engine that sampled, so no trainer should too."""
        return False

    @property
    def top_k(self) -> int | None:
        """How many likeliest tokens the top-k divergences it requires are over, if it does."""
        return None

    @property
    def weight_on_policy(self) -> float:
        """Weight c of a kept token's gradient c A while new, old and sampling policy are one."""
        return 1.0

    @property
    def twins(self) -> dict[str, dict[str, Any]]:
        """Settings of stock trainers with this very gradient, by trainer, where one has a name
        for the method; those of a plain clip follow from `log_interval`."""
        return {}

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        """Bounds of the log-ratio inside which the gate never closes.

        Args:
          p_old: old probability of each token, for bounds that depend on it.

        Raises:
          ValueError: the method's constraint is no ratio interval, or ``p_old`` is missing.
        """
        raise ValueError(f"the constraint of {self.name!r} is no ratio interval.")

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Numbers over many tokens that `surrogate` reads from ``batch.statistics``.

        Args:
          batch: tokens of this rank; see `statistics_over`.
          reduce: sums a tensor over ranks.
        """
        return {}

    @property
    def adapts(self) -> bool:
        """True where `after` can answer with another method than this one."""
        return False

    def after(self, metrics: Mapping[str, float]) -> "Method":
        """The method for the next update: itself, unless a threshold of it adapts.

        Args:
          metrics: means of the update by the names of `trustclip.diagnostics.token_metrics`, over
            all ranks.
        """
        return self

    def state(self) -> dict[str, Any]:
        """What `after` has changed, for a checkpoint; empty where nothing can."""
        return {}

    def restored(self, state: Mapping[str, Any]) -> "Method":
        """The method with a `state` of an equal one."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **hyper-parameters}``: `method` of it is an equal method.

        Example:
          >>> method("kl2", delta=0.05).to_dict()
          {'name': 'kl2', 'delta': 0.05, 'side': 'outward'}
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        parts = {k: v.to_dict() for k, v in values.items() if isinstance(v, Method)}
        return {"name": self.name, **values, **parts}

    def __and__(self, other: "Method") -> "Method":
        """Both constraints at once: a token is kept where both keep it; see method ``both``."""
        return method("both", first=self, second=other)

    def __or__(self, other: "Method") -> "Method":
        """Either constraint: a token is kept where one of them keeps it; see method ``either``."""
        return method("either", first=self, second=other)


@cache
def methods() -> dict[str, type[Method]]:
    """Every method of the library by name, found by walking ``trustclip/methods/``.

    Example:
      >>> "atr" in methods()
      True
    """
    package = importlib.import_module("trustclip.methods")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    return {name: _defined_in(f"trustclip.methods.{name}") for name in names}


def _defined_in(module_name: str) -> type[Method]:
    module = importlib.import_module(module_name)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module_name
    ]
    if len(found) != 1:
        raise ImportError(f"{module_name} must define exactly one Method, found {len(found)}.")
    return found[0]


def method_class(name: str) -> type[Method]:
    """Class of the method called ``name``, or of ``"package.module:Class"``.

    Raises:
      ValueError: nothing of that name; the message has the nearest right one.

    Example:
      >>> method_class("atr").__name__
      'ATR'
    """
    if not isinstance(name, str):
        raise ValueError(f"a method's name must be text, got {name!r}.")
    if ":" in name:
        return _imported(name)
    if name not in methods():
        raise ValueError(unknown("method", name, methods()))
    return methods()[name]


def _imported(path: str) -> type[Method]:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot load method {path!r}: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(f"{path!r} is no subclass of trustclip.Method.")
    return found


def method(name: str, **hyperparameters: Any) -> Method:
    """The method called ``name``, with its paper's defaults where nothing else is said.

    Args:
      name: one of `methods`, or ``"package.module:Class"``.
      **hyperparameters: fields of the method's class; in place of a number, a controller or the
        mapping of one (see `trustclip.controllers`).

    Raises:
      ValueError: unknown name, unknown hyper-parameter, or a value out of range.

    Example:
      >>> method("kl2", delta=0.05)
      KL2(delta=0.05, side='outward')
    """
    cls = method_class(name)
    allowed = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in allowed:
            raise ValueError(unknown(f"hyper-parameter of {name}", key, allowed))
    # A layer above: what makes a method adapt is made of methods.
    adaptive = importlib.import_module("trustclip.adaptive")
    try:
        fixed, controllers = adaptive.split(cls, hyperparameters)
        chosen = cls(**fixed)
        return adaptive.Adaptive(inner=chosen, controllers=controllers) if controllers else chosen
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def as_method(spec: "Method | str | Mapping[str, Any]") -> Method:
    """A method from itself, its name, or ``{"name": ..., **hyper-parameters}``.

    Raises:
      ValueError: none of these, or what `method` raises.

    Example:
      >>> as_method({"name": "clip", "epsilon": 0.1}) == method("clip", epsilon=0.1)
      True
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str):
        return method(spec)
    if not isinstance(spec, Mapping):
        raise ValueError(f"a method is its name or a mapping with a `name`, got {spec!r}.")
    if "name" not in spec:
        raise ValueError(f"a method needs a `name`, got {dict(spec)!r}.")
    return method(**spec)


def interval(
    spec: "Method | str", p_old: Tensor | None = None, **hyperparameters: Any
) -> tuple[Tensor | float, Tensor | float]:
    """Ratio interval inside which the gate of a method never closes, in float64.

    Args:
      spec: a method, or the name of one.
      p_old: old probability of each token, for methods whose bounds depend on it. Any shape.
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
    chosen = spec if isinstance(spec, Method) else method(spec, **hyperparameters)
    return tuple(_exp(b) for b in chosen.log_interval(p_old))  # type: ignore[return-value]


def _exp(bound: Tensor | float) -> Tensor | float:
    return bound.double().exp() if isinstance(bound, Tensor) else math.exp(bound)


def need_p_old(p_old: Tensor | None, name: str) -> Tensor:
    """``p_old`` checked, in float64: given, and in (0, 1].

    Raises:
      ValueError: it is missing or out of range.
    """
    if p_old is None:
        raise ValueError(f"the interval of {name!r} depends on the token: give `p_old`.")
    if not ((p_old > 0) & (p_old <= 1)).all():
        raise ValueError(f"`p_old` must be probabilities in (0, 1], got {p_old}.")
    return p_old.double()
