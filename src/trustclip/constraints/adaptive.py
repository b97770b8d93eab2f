"""Methods with controllers as thresholds; they are immutable methods like any other."""

import copy
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self, get_type_hints

from pydantic import InstanceOf
from torch import Tensor

from trustclip.constraints.base import BY_TOKEN, Method, Reduce, definition, methods
from trustclip.constraints.base import value as value_of
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.controllers import NAMED, Controller, PerToken, Target, controller
from trustclip.support.marks import marks
from trustclip.support.names import nearest

#: Pairs of a hyper-parameter's name and its controller.
Controllers = tuple[tuple[str, Controller], ...]


def split(
    cls: type[Method], hyperparameters: Mapping[str, Any], preset: Mapping[str, Any]
) -> tuple[dict[str, Any], Controllers]:
    """Hyper-parameters of a class or its preset as initial numbers, and the controllers among them.

    Raises:
      ValueError: an invalid controller, or one without an initial value.
    """
    defaults = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
    fixed, controllers = dict(hyperparameters), []
    for name, value in hyperparameters.items():
        # A field that holds a method takes no controller: its class reports the error.
        is_method = isinstance(defaults.get(name), Method)
        one = None if is_method else _as_controller(name, value)
        if one is None:
            continue
        if one.initial is None and name in preset:
            one = replace(one, initial=preset[name])  # type: ignore[arg-type]
        start = one.initial
        if start is None and (start := defaults[name]) is None:
            plain = {k: v for k, v in hyperparameters.items() if _as_controller(k, v) is None}
            start = value_of(cls(**plain), name)
        if isinstance(start, bool) or not isinstance(start, int | float):
            raise ValueError(f"the controller of `{name}` needs `initial`: there is no default.")
        fixed[name] = start
        controllers.append((name, one))
    return fixed, tuple(controllers)


def _as_controller(name: str, value: Any) -> Controller | None:
    if isinstance(value, Controller):
        return value
    # A mapping, or text that looks like one but does not parse; with a `name` it is a method.
    garbled = isinstance(value, str) and value.lstrip().startswith("{") and "name" not in value
    if not garbled and (not isinstance(value, Mapping) or "name" in value):
        return None
    if isinstance(value, str) or "controller" not in value:
        near = None if isinstance(value, str) else nearest("controller", value)
        hint = f" Did you mean `controller` by {near!r}?" if near else ""
        raise ValueError(
            f"`{name}` {value!r} is neither a number nor a controller, {{controller: NAME, ...}}."
            f"{hint} NAME may be: {', '.join(NAMED)}."
        )
    settings = {key: item for key, item in value.items() if key != "controller"}
    try:
        return controller(value["controller"], **settings)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None


@definition
class Adaptive(Composite):
    """A method with controllers for some of its thresholds; made by `trustclip.method`.

    It has the name and the contract of the method itself. The metric ``threshold/NAME`` is the
    current threshold, or its mean over tokens, and ``threshold/NAME/at_limit`` the share of tokens
    whose threshold is at its ``low`` or ``high``: where it stays at 1, the controller cannot hold
    its target.

    Args:
      inner: the method at its current thresholds.
      controllers: the controller of each threshold.

    Example:
      >>> import trustclip as tc
      >>> method = tc.method("atr", delta=tc.controllers.target_gate(share=0.02))
      >>> method.inner.delta, round(method.after({"gated": 0.1}).inner.delta, 4)
      (0.07, 0.1044)
    """

    only_adds = True

    inner: InstanceOf[Method]
    controllers: tuple[tuple[str, InstanceOf[Controller]], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, one in self.controllers:
            if isinstance(one, PerToken) and name not in by_token(type(self.inner)):
                able = [f"{m}.{field}" for m, cls in methods().items() for field in by_token(cls)]
                raise ValueError(
                    f"`{name}` of this method is one number for all tokens; what can be one per "
                    f"token: {', '.join(able)}."
                )
            start = self._start(name, one)
            low, high = one.between(start)
            if not low <= start <= high:
                raise ValueError(f"`{name}`: {start:g} is not within [{low:g}, {high:g}].")
            for end, value in (("low", low), ("high", high)):
                try:
                    replace(self.inner, **{name: value})  # type: ignore[type-var]
                except ValueError as error:
                    raise ValueError(f"{error}: give the controller another `{end}`") from None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def requires(self) -> tuple[str, ...]:
        also = [name for _, one in self.controllers for name in one.requires]
        return tuple(dict.fromkeys((*self.inner.requires, *also)))

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        for name, one in self.controllers:
            if isinstance(one, PerToken):
                raise ValueError(f"`{name}` of {self.name!r} differs from token to token.")
        return self.inner.log_interval(p_old)

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        return self.inner.statistics(batch, reduce)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        method = copy.copy(self.inner)
        extras = {}
        for name, one in self.controllers:
            threshold = getattr(self.inner, name)
            if isinstance(one, PerToken):
                threshold = one.thresholds(threshold, batch)
                # Its class accepts numbers only; `per_token` states that tensors work here.
                object.__setattr__(method, name, threshold)
            value = batch.logp_old.new_zeros(()) + threshold
            low, high = (value.new_tensor(end) for end in one.between(self._start(name, one)))
            extras[f"threshold/{name}"] = value
            extras[f"threshold/{name}/at_limit"] = ((value <= low) | (value >= high)).to(value)
        surrogate = method.surrogate(batch)
        per_token = {name: value.expand_as(batch.logp_old) for name, value in extras.items()}
        return Surrogate(surrogate.objective, surrogate.kept, {**surrogate.extras, **per_token})

    def after(self, metrics: Mapping[str, float]) -> Self:
        thresholds = {}
        for name, one in self.controllers:
            if isinstance(one, Target):
                low, high = one.between(self._start(name, one))
                thresholds[name] = min(max(one.next(getattr(self.inner, name), metrics), low), high)
        inner = replace(self.inner.after(metrics), **thresholds)  # type: ignore[type-var]
        return replace(self, inner=inner)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        return {**self.inner.to_dict(), **{name: one.to_dict() for name, one in self.controllers}}

    def _start(self, name: str, one: Controller) -> float:
        if one.initial is not None:
            return one.initial
        defaults: Any = {f.name: f.default for f in fields(self.inner)}  # type: ignore[arg-type]
        return value_of(replace(self.inner, **{name: defaults[name]}), name)  # type: ignore[type-var]


def by_token(cls: type[Method]) -> list[str]:
    """Hyper-parameters of a method's class that may differ from token to token.

    Example:
      >>> import trustclip as tc
      >>> by_token(tc.methods()["clip_higher"]), by_token(tc.methods()["cispo"])
      (['low', 'high'], [])
    """
    hints = get_type_hints(cls, include_extras=True)
    return [name for name, hint in hints.items() if BY_TOKEN in marks(hint)]


def state(method: Method) -> dict[str, Any]:
    """What `Method.after` has changed, for a checkpoint; empty where nothing can.

    Example:
      >>> import trustclip as tc
      >>> state(tc.method("atr", delta=tc.controllers.target_gate(share=0.02)))
      {'thresholds': {'delta': 0.07}}
    """
    parts = method.parts_by_field() if isinstance(method, Composite) else {}
    changed = {name: own for name, part in parts.items() if (own := state(part))}
    if isinstance(method, Adaptive):
        targets = [name for name, one in method.controllers if isinstance(one, Target)]
        own = {name: getattr(method.inner, name) for name in targets}
        changed |= {"thresholds": own} if own else {}
    return changed


def restored(method: Method, state: Mapping[str, Any]) -> Method:
    """The method with a `state` of an equal one."""
    if not isinstance(method, Composite) or not state:
        return method
    parts = method.parts_by_field()
    changed: dict[str, Any] = {
        name: restored(parts[name], own) for name, own in state.items() if name in parts
    }
    if isinstance(method, Adaptive):
        inner: Any = changed.get("inner", method.inner)
        changed["inner"] = replace(inner, **state.get("thresholds", {}))
    return replace(method, **changed)  # type: ignore[type-var]


def adapts(method: Method) -> bool:
    """Whether `Method.after` can return another method than this one.

    Example:
      >>> import trustclip as tc
      >>> held = tc.controllers.target_gate(share=0.02)
      >>> adapts(tc.method("atr", delta=held)), adapts(tc.method("atr"))
      (True, False)
    """
    return bool(state(method))
