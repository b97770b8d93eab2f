"""Methods: a named choice of divergence, threshold, gate and level, with its paper's defaults.

In one file because the traits and the members of `Method` are one contract.
"""

import enum
import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.gates import Side
from trustclip.constraints.levels import Level
from trustclip.constraints.twins import Twins, clip_twins, sequence_clip_twins
from trustclip.support.checked import AboveOne as AboveOne
from trustclip.support.checked import NonNegative as NonNegative
from trustclip.support.checked import Number as Number
from trustclip.support.checked import Positive as Positive
from trustclip.support.checked import UpToOne as UpToOne
from trustclip.support.checked import checked
from trustclip.support.consent import import_object
from trustclip.support.names import unknown

Reduce = Callable[[Tensor], Tensor]

_T = TypeVar("_T")
BY_TOKEN = "one for each token"
#: Mark of a hyper-parameter that may also be a tensor [batch, time]: a threshold for each token.
ByToken = Annotated[_T, BY_TOKEN]

#: Other names of methods: name -> the method, and the hyper-parameters that make it the other.
#: CFPO (Çağatan et al., `2601.22801 <https://arxiv.org/abs/2601.22801>`_) has the objective of SPO;
#: AReaL's decoupled PPO (Fu et al., `2505.24298 <https://arxiv.org/abs/2505.24298>`_) is PPO's clip
#: around the proximal policy with the weight of that policy to the sampler, here truncated.
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cfpo": ("spo", {}),
    "decoupled_ppo": ("tis", {"inner": "clip"}),
    # GLM-5 and SAO: inside an interval around the sampler the ratio weighs, outside nothing does.
    "double_sided": ("anchored", {"inner": {"name": "clip_higher", "side": "strict"}}),
    "ppo_penalty": ("penalty", {"inner": "importance_sampling", "divergence": "k3", "beta": 1.0}),
}

#: Methods by what else they are called: the divergence that they bound, or a loss with their clip.
HINTS = {"kl3": "atr", "k3": "atr", "sapo": "soft_gate", "dcpo": "dynamic_clip", "ppo": "clip"}
HINTS |= {"grpo": "clip", "dapo": "clip_higher", "none": "importance_sampling"}


#: Class decorator of a method: a frozen, keyword-only dataclass that checks its values.
definition = checked


class Trait(enum.Flag):
    """Properties of a method, apart from its gradient, that engines, reports and recipes need.

    A composite method has the traits of its parts, joined by ``|``, except those in `ALONE`.

    Example:
      >>> import trustclip as tc
      >>> Trait.CUTS in tc.method("atr").traits, Trait.CUTS in tc.method("cispo").traits
      (True, False)
    """

    #: The gate can close; a soft gate only weighs tokens.
    CUTS = enum.auto()
    #: The gradient can differ from plain REINFORCE while the ratio is still 1.
    ACTS_ON_POLICY = enum.auto()
    #: A token of zero advantage can get a gradient.
    MOVES_WITHOUT_ADVANTAGE = enum.auto()
    #: A token can get a gradient against its advantage.
    REVERSES = enum.auto()
    #: The gradient of the full KL takes part, not only that of the sampled token.
    NEEDS_KL_GRADIENT = enum.auto()
    #: The weight corrects for the engine that sampled, so no trainer may do it again.
    CORRECTS_SAMPLER = enum.auto()
    #: ``delta`` bounds an estimate of the token's KL divergence, in nats.
    ESTIMATES_KL = enum.auto()
    #: PPO's clip with the bounds of `Method.log_interval`: the gate is outward and nothing else
    #: cuts, and a kept token weighs by its ratio; with `SEES_OTHERS`, by its sequence's.
    CLIPS = enum.auto()
    #: The coefficient of a token depends on other tokens of its prefix or sequence.
    SEES_OTHERS = enum.auto()
    #: The weight compares the old policy with the one that sampled, and does nothing where they are
    #: one.
    WEIGHS_OLD_POLICY = enum.auto()
    #: Traits that a composite method does not inherit from its parts.
    ALONE = ESTIMATES_KL | CLIPS | WEIGHS_OLD_POLICY


def clips(side: Side, level: Level = "token") -> Trait:
    """The trait of a gate that is `Method.log_interval` alone, if it has one.

    A strict gate is no clip of any trainer, nor is one of a ``"prefix"`` or a ``"turn"``.
    """
    return Trait(0) if side == "strict" or level in ("prefix", "turn") else Trait.CLIPS


def spans(level: str) -> Trait:
    """The trait of what is measured at a level: beyond ``"token"`` others take part.

    Example:
      >>> Trait.SEES_OTHERS in spans("sequence"), spans("token") == Trait(0)
      (True, True)
    """
    return Trait(0) if level == "token" else Trait.SEES_OTHERS


def anchor_fields(anchor: str) -> tuple[str, ...]:
    """Optional fields of `TokenBatch` that a ratio against an anchor needs.

    Example:
      >>> anchor_fields("old"), anchor_fields("rollout")
      ((), ('logp_rollout',))
    """
    several = {"old": (), "interpolated": ("logp_rollout", "lag")}
    return several.get(anchor, (f"logp_{anchor}",))


class Method(ABC):
    """Base class of methods: hyper-parameters as fields, and `surrogate`.

    A subclass is one file in ``trustclip/methods/``, or anywhere under the name
    ``"package.module:Class"``; decorated with `definition`; final. Only `surrogate` is required;
    everything else has a default. A hyper-parameter marked `ByToken` may differ from token to
    token; one whose None stands for the source's number has that as ``source_NAME``; see `value`.
    `requires`, `traits` and `statistics_over` that no hyper-parameter changes can be given where
    the class begins: ``class Mine(Method, traits=Trait(0))``.
    """

    _requires: ClassVar[tuple[str, ...] | None] = None
    _traits: ClassVar[Trait] = Trait.CUTS
    _statistics_over: ClassVar[Literal["generation", "micro_batch"] | None] = None

    def __init_subclass__(
        cls,
        requires: tuple[str, ...] | None = None,
        traits: Trait | None = None,
        statistics_over: Literal["generation", "micro_batch"] | None = None,
        **others: Any,
    ) -> None:
        super().__init_subclass__(**others)
        cls._requires = cls._requires if requires is None else requires
        cls._traits = cls._traits if traits is None else traits
        cls._statistics_over = statistics_over or cls._statistics_over

    @abstractmethod
    def surrogate(self, batch: TokenBatch) -> Surrogate:
        """Objective to maximise and which tokens keep their gradient; see `Surrogate`."""

    @property
    def name(self) -> str:
        """Name of the method: that of its file in this package, else ``"module:Class"``."""
        module = type(self).__module__
        stem = module.removeprefix("trustclip.methods.")
        return stem if stem != module else f"{module}:{type(self).__qualname__}"

    @property
    def requires(self) -> tuple[str, ...]:
        """Optional fields of `TokenBatch` that the method cannot do without.

        Those of its field ``anchor``, if it has one, unless overridden.
        """
        if self._requires is not None:
            return self._requires
        return anchor_fields(getattr(self, "anchor", "old"))

    @property
    def traits(self) -> Trait:
        """Properties of the method; those of a plain hard gate unless stated.

        Its fields ``anchor`` and ``level`` add theirs, if it has them.
        """
        own = self._traits | spans(getattr(self, "level", "token"))
        if getattr(self, "anchor", "old") == "rollout":
            # The ratio corrects for the sampler, and is not 1 when an update starts.
            own |= Trait.ACTS_ON_POLICY | Trait.CORRECTS_SAMPLER
        return own

    @property
    def twins(self) -> Twins:
        """Settings of stock trainers with this very gradient, by trainer; each proved by a test.

        Derived from `log_interval` for a method with `Trait.CLIPS`. The aggregation is among them
        only where the trainer ties it to the constraint, or the method's source does.
        ``"trustclip"`` is another method with the same gradient.

        Example:
          >>> import trustclip as tc
          >>> tc.method("clip", epsilon=0.1).twins["TRL"]
          {'epsilon': 0.1, 'epsilon_high': 0.1}
          >>> tc.method("clip", side="strict").twins
          {}
        """
        if Trait.CLIPS not in self.traits:
            return {}
        of_sequences = Trait.SEES_OTHERS in self.traits
        twins = (sequence_clip_twins if of_sequences else clip_twins)(self.log_interval())
        return {trainer: twin for trainer, twin in twins.items() if twin.get("name") != self.name}

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        """Bounds of the log-ratio inside which the gate never closes.

        Args:
          p_old: old probability of each token, for bounds that depend on it.

        Raises:
          ValueError: the method's constraint is no ratio interval, or ``p_old`` is missing.
        """
        if Trait.CUTS not in self.traits:
            raise ValueError(f"{self.name!r} has no ratio interval: it cuts no token.")
        raise ValueError(
            f"{self.name!r} has no ratio interval: its gate depends on more than the token's "
            "ratio, or its class does not define `log_interval`."
        )

    @property
    def statistics_over(self) -> Literal["generation", "micro_batch"] | None:
        """What `statistics` is measured over: the generation batch at the old policy, every
        micro-batch at the current one, or (None) nothing."""
        return self._statistics_over

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Numbers over many tokens that `surrogate` reads from ``batch.statistics``.

        Args:
          batch: tokens of this rank; see `statistics_over`.
          reduce: sums a tensor over ranks.
        """
        return {}

    def after(self, metrics: Mapping[str, float]) -> "Method":
        """The method for the next update: itself, unless one of its thresholds adapts.

        Args:
          metrics: means of the update over all ranks, by the names of
            `trustclip.constraints.diagnostics.token_metrics`.
        """
        return self

    def to_dict(self) -> dict[str, Any]:
        """``{"name": ..., **hyper-parameters}``: `method` of it is an equal method.

        Example:
          >>> import trustclip as tc
          >>> tc.method("kl2", delta=0.05).to_dict()
          {'name': 'kl2', 'delta': 0.05, 'side': 'outward'}
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        parts = {k: v.to_dict() for k, v in values.items() if isinstance(v, Method)}
        return {"name": self.name, **values, **parts}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The module of a file is named after it, and Python imports none of that name.
        if not type(self).__module__.endswith(".py"):
            return super().__reduce_ex__(protocol)
        return _rebuild, (self.name, {f.name: getattr(self, f.name) for f in fields(self)})  # type: ignore[arg-type]

    def __and__(self, other: "Method") -> "Method":
        """Both constraints at once: a token is kept where both keep it; see method ``both``."""
        return cast(Any, method_class("both"))(first=self, second=other)

    def __or__(self, other: "Method") -> "Method":
        """Either constraint: a token is kept where one of them keeps it; see method ``either``."""
        return cast(Any, method_class("either"))(first=self, second=other)


class Interval(Method):
    """A clip with bounds of its own: a subclass has its hyper-parameters and `log_interval`.

    It may have fields ``side`` and ``level``; without them the gate is outward, and of the token.
    """

    @property
    def traits(self) -> Trait:
        return super().traits | clips(*self._gate())

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        return gates.interval(batch, self.log_interval(), *self._gate())

    def _gate(self) -> tuple[Side, Level]:
        return getattr(self, "side", "outward"), getattr(self, "level", "token")


class Offsets(Method):
    """A method that cuts nothing inside the offsets from ratio 1 of its fields low and high."""

    low: Any
    high: Any

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return intervals.log_offsets(self.low, self.high)


def _rebuild(name: str, values: Mapping[str, Any]) -> Method:
    """A pickled method of a file."""
    return cast(Any, method_class(name))(**values)


#: Folders whose files are methods.
_METHODS = [str(Path(__file__).parents[1] / "methods")]


@cache
def methods() -> dict[str, type[Method]]:
    """Every method of the library by name, found by walking ``trustclip/methods/``.

    Example:
      >>> "atr" in methods()
      True
    """
    names = sorted(module.name for module in pkgutil.iter_modules(_METHODS))
    return {name: _class_in(f"trustclip.methods.{name}") for name in names}


def _class_in(module_name: str) -> type[Method]:
    module = importlib.import_module(module_name)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module_name
    ]
    if len(classes) != 1:
        raise ImportError(f"{module_name} must define exactly one Method, found {len(classes)}.")
    return classes[0]


def method_class(name: str) -> type[Method]:
    """Class of the method called ``name``, by `ALIASES` too, or of ``"file.py:Class"``.

    Raises:
      ValueError: there is no such method; the message names the nearest one.

    Example:
      >>> method_class("atr").__name__
      'ATR'
    """
    if not isinstance(name, str):
        raise ValueError(f"a method's name must be text, got {name!r}.")
    if ":" in name:
        cls = import_object(name, "method")
        if not (isinstance(cls, type) and issubclass(cls, Method)):
            raise ValueError(f"{name!r} is no subclass of trustclip.Method.")
        left_out = inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls)
        if cls.__abstractmethods__ or left_out or not is_dataclass(cls):
            raise ValueError(f"{name!r} needs `surrogate` and the decorator @tc.definition.")
        return cls
    name, _ = ALIASES.get(name, (name, {}))
    if name not in methods():
        raise ValueError(unknown("method", name, [*methods(), *ALIASES], HINTS.get(name.lower())))
    return methods()[name]


def of_own_token(method: Method) -> bool:
    """Whether a token's coefficient can be computed from the batch's entries of that token alone.

    Example:
      >>> import trustclip as tc
      >>> [of_own_token(tc.method(name)) for name in ("atr", "gspo", "trpo")]
      [True, False, False]
    """
    if Trait.SEES_OTHERS in method.traits or method.statistics_over == "micro_batch":
        return False
    values = [getattr(method, f.name) for f in fields(method)]  # type: ignore[arg-type]
    parts = [value for value in values if isinstance(value, Method)]
    return all(map(of_own_token, parts)) and not any(isinstance(v, Tensor) for v in values)


def value(method: Method, name: str) -> Any:
    """The value of a hyper-parameter in use: for None the source's, which may depend on others.

    Example:
      >>> import trustclip as tc
      >>> tc.method("dppo").delta, value(tc.method("dppo"), "delta")
      (None, 0.15)
    """
    given = getattr(method, name)
    return getattr(method, f"source_{name}", None) if given is None else given


def top_k(method: Method) -> int | None:
    """Number of likeliest tokens covered by the top-k divergences that a method requires.

    Example:
      >>> import trustclip as tc
      >>> top_k(tc.method("dppo", divergence="top_k_tv", k=8)), top_k(tc.method("dppo"))
      (8, None)
    """
    if not any(name.startswith("top_k_") for name in method.requires):
        return None
    parts = map(top_k, getattr(method, "parts", ()))
    return getattr(method, "k", None) or next(filter(None, parts))


def moves_candidates(method: Method) -> bool:
    """Whether tokens that were not sampled get a gradient, too, through ``batch.candidates``.

    Example:
      >>> import trustclip as tc
      >>> moves_candidates(tc.method("centered")), moves_candidates(tc.method("atr"))
      (True, False)
    """
    return "candidates" in method.requires


def need_p_old(p_old: Tensor | None, name: str) -> Tensor:
    """``p_old`` in float64, after a check that it is given and in (0, 1].

    Raises:
      ValueError: it is missing or out of range.
    """
    if p_old is None:
        raise ValueError(f"the interval of {name!r} depends on the token: give `p_old`.")
    if not ((p_old > 0) & (p_old <= 1)).all():
        raise ValueError(f"`p_old` must be probabilities in (0, 1], got {p_old.tolist()}.")
    return p_old.double()
