"""Methods made of methods: a weight around another one, or two at once.

A part is a method as YAML and Python write it: its name, or a mapping with ``name`` and its
hyper-parameters. The command line takes the same text: ``--method.inner atr``, or
``--method.inner "{name: atr, delta: 0.05}"``.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import BeforeValidator, InstanceOf
from torch import Tensor
from tyro.constructors import PrimitiveConstructorSpec

from trustclip.batch import Surrogate, TokenBatch
from trustclip.masked import zero_masked
from trustclip.method import Method, Reduce, as_method


def as_text(method: Method) -> str:
    """A method in one line of YAML, as the command line takes it.

    Example:
      >>> as_text(as_method("kl2"))
      '{name: kl2, delta: 0.07, side: outward}'
    """
    text = yaml.safe_dump(method.to_dict(), default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip()


_TEXT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="METHOD",
    instance_from_str=lambda arguments: as_method(yaml.safe_load(arguments[0])),
    is_instance=lambda value: isinstance(value, Method),
    str_from_instance=lambda method: [
        yaml.safe_dump(
            method.to_dict(), default_flow_style=True, sort_keys=False, width=1000
        ).strip()
    ],
)

#: Type of a field that holds a method.
Part = Annotated[InstanceOf[Method], BeforeValidator(as_method), _TEXT]


class Composite(Method):
    """A method made of the methods that `parts` names; what they need, it needs.

    Statistics of a part travel under its place and a slash, ``"0/mean_logp"``.
    """

    #: Fields of `TokenBatch` needed beside those of the parts.
    also_requires: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Method, ...]:
        """The methods it is made of."""

    def __post_init__(self) -> None:
        for name, what in (("statistics_over", "measure over"), ("top_k", "take a top-k of")):
            wanted = [(p.name, getattr(p, name)) for p in self.parts if getattr(p, name)]
            if len({value for _, value in wanted}) > 1:
                each = ", ".join(f"{part} {what} {value}" for part, value in wanted)
                raise ValueError(f"parts do not combine: {each}.")

    @property
    def requires(self) -> tuple[str, ...]:
        needed = [name for part in self.parts for name in part.requires]
        return tuple(dict.fromkeys((*needed, *self.also_requires)))

    @property
    def needs_kl_gradient(self) -> bool:
        return any(part.needs_kl_gradient for part in self.parts)

    @property
    def moves_without_advantage(self) -> bool:
        return any(part.moves_without_advantage for part in self.parts)

    @property
    def reverses(self) -> bool:
        return any(part.reverses for part in self.parts)

    @property
    def corrects_sampler(self) -> bool:
        return any(part.corrects_sampler for part in self.parts)

    @property
    def top_k(self) -> int | None:
        return next((part.top_k for part in self.parts if part.top_k), None)

    @property
    def statistics_over(self) -> Any:  # type: ignore[override]
        return next((p.statistics_over for p in self.parts if p.statistics_over), None)

    @property
    def acts_on_policy(self) -> bool:  # type: ignore[override]
        return any(part.acts_on_policy for part in self.parts)

    @property
    def cuts(self) -> bool:  # type: ignore[override]
        return any(part.cuts for part in self.parts)

    @property
    def score_form(self) -> bool:  # type: ignore[override]
        return any(part.score_form for part in self.parts)

    @property
    def adapts(self) -> bool:
        return any(part.adapts for part in self.parts)

    def after(self, metrics: Mapping[str, float]) -> Self:
        """With each part as it is after an update of the whole."""
        return replace(self, **{name: p.after(metrics) for name, p in self._fields().items()})  # type: ignore[type-var]

    def state(self) -> dict[str, Any]:
        """What `after` has changed in each part, by its field."""
        states = {name: part.state() for name, part in self._fields().items()}
        return {name: state for name, state in states.items() if state}

    def restored(self, state: Mapping[str, Any]) -> Self:
        parts = self._fields()
        return replace(self, **{name: parts[name].restored(state[name]) for name in state})  # type: ignore[type-var]

    def _fields(self) -> dict[str, Method]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Method)}

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Statistics of the parts, each under its place."""
        return {
            f"{i}/{name}": value
            for i, part in enumerate(self.parts)
            for name, value in part.statistics(batch, reduce).items()
        }

    def surrogates(self, batch: TokenBatch) -> Iterator[Surrogate]:
        """What each part makes of the batch."""
        for i, part in enumerate(self.parts):
            mine = {
                name.removeprefix(f"{i}/"): value
                for name, value in (batch.statistics or {}).items()
                if name.startswith(f"{i}/")
            }
            yield part.surrogate(replace(batch, statistics=mine or None))


class Weighted(Composite):
    """A weight around the method ``inner``: a correction, or a mask over whole sequences.

    A subclass has a field ``inner`` of type `Part` and owes `weight`.
    """

    inner: Method

    @property
    def parts(self) -> tuple[Method, ...]:
        return (self.inner,)

    @abstractmethod
    def weight(self, batch: TokenBatch) -> Tensor:
        """Factor of each token's objective, without gradient; 0 drops it. Shape [batch, time]."""

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inside,) = self.surrogates(batch)
        weight = zero_masked(self.weight(batch).detach(), batch.mask)
        return Surrogate(inside.objective * weight, inside.kept & (weight > 0), inside.extras)
