"""Composite methods: a weight around another method, or two methods combined.

A part is given as in YAML and Python: a name, or a mapping with ``name`` and hyper-parameters.
The command line takes the same text: ``--method.inner atr``, or
``--method.inner "{name: atr, delta: 0.05}"``.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import reduce
from operator import or_
from typing import ClassVar, Literal, Self

from torch import Tensor

from trustclip.constraints.base import Method, Reduce, Trait, moves_candidates, top_k
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import zero_masked
from trustclip.constraints.twins import CORRECTION, Twins


class Composite(Method):
    """A method made of the methods in `parts`, with their requirements and traits.

    It requires what a field ``anchor`` of its own needs, too, if it has one.

    Statistics of a part are named by its position and a slash, ``"0/mean_logp"``.
    """

    #: Fields of `TokenBatch` needed in addition to those of the parts.
    also_requires: ClassVar[tuple[str, ...]] = ()

    #: Whether it only adds a term to the objective of a part, or to the advantages.
    only_adds: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods it is made of: its fields that are methods, in their order."""
        return tuple(self.parts_by_field().values())

    def __post_init__(self) -> None:
        for part in self.parts:
            if moves_candidates(part) and not self.only_adds:
                raise ValueError(
                    f"put {part.name!r} on the outside, {part.name}(inner={self.name}(...)): it "
                    "removes the drift of the whole method, so it has to see all of it."
                    if isinstance(part, Composite)
                    else f"{part.name!r} moves tokens that were not sampled: a penalty can be "
                    "added to it, nothing else goes around it."
                )
        for need, what in (
            (lambda part: part.statistics_over, "measure over"),
            (top_k, "take a top-k of"),
        ):
            needs = [(part.name, need(part)) for part in self.parts if need(part)]
            if len({value for _, value in needs}) > 1:
                conflict = ", ".join(f"{part} {what} {value}" for part, value in needs)
                raise ValueError(f"parts do not combine: {conflict}.")

    @property
    def requires(self) -> tuple[str, ...]:
        needed = [name for part in self.parts for name in part.requires]
        return tuple(dict.fromkeys((*needed, *super().requires, *self.also_requires)))

    @property
    def traits(self) -> Trait:
        return reduce(or_, (part.traits for part in self.parts)) & ~Trait.ALONE

    @property
    def statistics_over(self) -> Literal["generation", "micro_batch"] | None:
        return next((p.statistics_over for p in self.parts if p.statistics_over), None)

    def after(self, metrics: Mapping[str, float]) -> Self:
        """The method with the `after` of each part."""
        parts = {name: part.after(metrics) for name, part in self.parts_by_field().items()}
        return replace(self, **parts)  # type: ignore[type-var]

    def parts_by_field(self) -> dict[str, Method]:
        """The methods it is made of, by the name of their field."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Method)}

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Statistics of the parts, each prefixed with its position."""
        return {
            f"{i}/{name}": value
            for i, part in enumerate(self.parts)
            for name, value in part.statistics(batch, reduce).items()
        }

    def surrogates(self, batch: TokenBatch) -> Iterator[Surrogate]:
        """The surrogate of each part."""
        for i, part in enumerate(self.parts):
            yield part.surrogate(self.of_part(i, batch))

    def of_part(self, i: int, batch: TokenBatch) -> TokenBatch:
        """The batch as a part reads it: with the statistics of that part."""
        mine = {
            name.removeprefix(f"{i}/"): value
            for name, value in (batch.statistics or {}).items()
            if name.startswith(f"{i}/")
        }
        return batch.having(statistics=mine or None)


class Weighted(Composite):
    """A weight around the method ``inner``: a correction, or a mask over whole sequences.

    A subclass has a field ``inner`` of type `Part` and implements `weight`.
    """

    inner: Method

    @abstractmethod
    def weight(self, batch: TokenBatch) -> Tensor:
        """Factor of each token's objective, without gradient; 0 drops it. Shape [batch, time]."""

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(batch)
        weight = zero_masked(self.weight(batch).detach(), batch.mask)
        # A weight of NaN does not cut the token: its gradient must show the NaN.
        return Surrogate(inner.objective * weight, inner.kept & (weight != 0), inner.extras)


class Choice(Weighted):
    """A mask or a weight under the name and with the numbers of its source: a row of ``sampler``.

    A subclass has the hyper-parameters of its source, and says in `as_sampler` what they are there.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_sampler", self.as_sampler())

    @abstractmethod
    def as_sampler(self) -> Weighted:
        """The same as a choice of ``sampler``."""

    @property
    def requires(self) -> tuple[str, ...]:
        return self._sampler.requires  # type: ignore[attr-defined]

    @property
    def traits(self) -> Trait:
        return self._sampler.traits  # type: ignore[attr-defined]

    def weight(self, batch: TokenBatch) -> Tensor:
        return self._sampler.weight(batch)  # type: ignore[attr-defined]


def corrected_twins(
    inner: Method,
    level: Literal["token", "sequence"],
    floor: float | None,
    ceiling: float,
    truncated: bool,
) -> Twins:
    """Twins of an importance weight old / sampler around a method, from that method's twins.

    Args:
      inner: the method.
      level: whose ratio weighs a token: its own, or the product over its sequence.
      floor: smallest ratio kept; None for no such bound.
      ceiling: largest ratio kept, or the largest weight.
      truncated: whether a ratio beyond ``ceiling`` becomes it, instead of 0.
    """
    twins: Twins = {}
    trl, verl = inner.twins.get("TRL", {}), inner.twins.get("verl")
    # A weight of each token, around a sequence's one ratio: in TRL the gradient follows the mean.
    follows_mean = level == "token" and trl.get("importance_sampling_level") == "sequence"
    same = not follows_mean or Trait.REVERSES in inner.traits
    # VESPO's loss makes the correction part of its own weight; other settings of vLLM are refused.
    if trl and same and trl.get("loss_type") != "vespo" and "use_vllm" not in trl:
        prefix = "vllm_importance_sampling"
        bounds = {f"{prefix}_clip_max": ceiling}
        if floor is not None:
            bounds[f"{prefix}_clip_min"] = floor
        mode = f"{level}_{'truncate' if truncated else 'mask'}"
        twins["TRL"] = trl | {"use_vllm": True, f"{prefix}_mode": mode} | bounds
    # verl's clip, with one gradient per token.
    clips_tokens = Trait.CLIPS in inner.traits and Trait.SEES_OTHERS not in inner.traits
    if verl is not None and clips_tokens and (truncated or floor is not None):
        threshold = ceiling if truncated else f"{floor}_{ceiling}"
        correction = {"rollout_is": level, "rollout_is_threshold": threshold}
        twins["verl"] = verl | {f"{CORRECTION}.{k}": v for k, v in correction.items()}
    return twins
