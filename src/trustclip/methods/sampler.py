"""A mask against the sampler, apart from the weight: every engine's correction in one method."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import divergences, levels
from trustclip.constraints.base import Number, Positive, Trait, definition, spans
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.compose import Weighted
from trustclip.constraints.masked import safe_exp, safe_expm1
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip

#: Logarithm of the largest weight, as in verl.
_LARGEST = 20.0

#: Each measure, of the log-probabilities of two policies, the one in the numerator first. The ratio
#: is compared as its logarithm.
_MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ratio": lambda p, q: p - q,
    "k1": lambda p, q: divergences.k1(p - q),
    "k2": lambda p, q: divergences.k2(p - q),
    "k3": lambda p, q: divergences.k3(p - q),
    "tv": lambda p, q: safe_expm1(p - q).abs(),
    "exp_abs": lambda p, q: safe_exp((p - q).abs()),
    "probability": lambda p, q: p.exp() - q.exp(),
    "binary_kl": lambda p, q: torch.maximum(
        divergences.binary_kl_old_new(p, q), divergences.binary_kl_old_new(q, p)
    ),
}


@definition
class Sampler(Weighted):
    r"""Sampler: any method is masked by one measure of the sampler and weighed by another.

    $$
    \omega_t\; \mathbf 1[\alpha \le D \le \beta]\; J_t
    $$

    with $J_t$ the objective of ``inner``, $D$ what is measured between two policies on the token or
    over its sequence, and $\omega$ an importance weight. Engines differ in three independent
    choices: what is measured, over what, and what the rest weighs. A dropped token has no gradient,
    around a method of whole sequences, too. For two masks, nest two of these.

    ``icepop``, ``kpop``, ``tis``, ``trm`` and ``opsm`` are choices of it under the names of their
    sources. Others: verl's ``rollout_rs=seq_mean_k3`` with ``rollout_is=token`` is
    ``sampler(measure="k3", level="sequence", ceiling=0.01, weigh_by="token", weight_ceiling=2)``;
    the geometric mask with token weights of OpenRLHF and NeMo RL (``seq-mask-tis``)
    ``sampler(level="sequence", floor=0.5, ceiling=5, weigh_by="token")``.

    Turn off the trainer's own correction, or it is applied twice.

    Args:
      inner: the method to mask and weigh: its name, or a mapping with ``name`` and
        hyper-parameters.
      measure: ``"ratio"``; ``"k1"``, minus the logarithm of that ratio, as in verl: where the old
        policy gives 0.4 and the sampler 0.5 the ratio is 0.8 and k1 is +0.22, so a floor of 0.8 on
        the one is a ceiling of 0.22 on the other; ``"k2"``; ``"k3"``; ``"tv"``, the distance
        of the ratio from 1 (0.2 there), as in Open Instruct; ``"exp_abs"``, the larger of the ratio
        and its inverse (1.25 there), as in NeMo RL; ``"probability"``, the difference of the two
        (-0.1 there), as in ROLL; ``"binary_kl"`` (of this token or any other, in the direction that
        is larger); or ``"kl_old_new"`` (exact; only between new and old).
      between: the two policies, numerator first: ``"old_rollout"``, which no update changes;
        ``"new_rollout"``, a trust region of its own; ``"new_old"``.
      level: ``"token"``, ``"turn"``, what the policy wrote between two replies of a tool, or
        ``"sequence"``.
      reduction: over the turn or the sequence: ``"mean"`` (of a ratio the geometric one), ``"sum"``
        (of a ratio the product) or ``"max"``.
      floor: $\alpha$, in the unit of the measure, a ratio or nats; None for no lower bound.
      ceiling: $\beta$, likewise.
      only: ``"all"`` tokens are masked, or those of ``"negative"`` advantage.
      side: beyond a bound, ``"both"`` masks every token, and ``"away"`` those alone whose own
        log-ratio has the sign of their advantage: their step would lead on (Open Instruct's TVPO).
      weigh_by: $\omega$: ``"none"`` (1), the token's own ratio to the sampler (``"token"``), or its
        sequence's product (``"sequence"``) or geometric mean (``"geometric"``).
      weigh_of: whose ratio to the sampler weighs, the ``"old"`` policy's or the ``"new"`` one's; a
        constant to the gradient.
      weight_floor: the least weight; None for none.
      weight_ceiling: the largest weight; None for e^20, as in verl.

    Raises:
      ValueError: bounds in the wrong order, an exact divergence from the sampler, or nothing that
        masks or weighs.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((2, 2), -1.0)
      >>> batch = tc.TokenBatch(old, old, torch.ones(2, 2), torch.ones(2, 2) > 0,
      ...                       logp_rollout=old - torch.tensor([[0.1, 0.1], [0.1, 1.2]]))
      >>> tc.coefficient(tc.method("sampler", level="sequence", floor=0.8, ceiling=1.25,
      ...                          weigh_by="token"), batch)  # geometric means of 1.105 and 1.92
      tensor([[1.1052, 1.1052],
              [0.0000, 0.0000]])

    References:
      Liu, Li et al., `When speed kills stability: demystifying RL collapse from the
      training-inference mismatch <https://yingru.notion.site/When-Speed-Kills>`_, 2025
    """

    inner: Part = Clip()
    measure: Literal[
        "ratio", "k1", "k2", "k3", "tv", "exp_abs", "probability", "binary_kl", "kl_old_new"
    ] = "ratio"
    between: Literal["old_rollout", "new_rollout", "new_old"] = "old_rollout"
    level: Literal["token", "turn", "sequence"] = "token"
    reduction: Literal["mean", "sum", "max"] = "mean"
    floor: Number | None = None
    ceiling: Number | None = 2.0
    only: Literal["all", "negative"] = "all"
    side: Literal["both", "away"] = "both"
    weigh_by: Literal["none", "token", "sequence", "geometric"] = "none"
    weigh_of: Literal["old", "new"] = "old"
    weight_floor: Positive | None = None
    weight_ceiling: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure == "kl_old_new" and self.between != "new_old":
            raise ValueError(
                "`measure` 'kl_old_new' is between new and old: no engine computes another."
            )
        for low, high in (("floor", "ceiling"), ("weight_floor", "weight_ceiling")):
            bounds = getattr(self, low), getattr(self, high)
            if None not in bounds and bounds[0] > bounds[1]:
                raise ValueError(f"`{low}` {bounds[0]:g} is above `{high}` {bounds[1]:g}.")
        same = 1.0 if self.measure in ("ratio", "exp_abs") else 0.0
        signed = {"ratio": 0.0, "k1": -math.inf, "probability": -math.inf}
        least = signed.get(self.measure, same)
        for name, inside in (
            ("floor", lambda b: least < b <= same),
            ("ceiling", lambda b: b >= same),
        ):
            bound = getattr(self, name)
            if bound is not None and not inside(bound):
                raise ValueError(
                    f"`{name}` is {bound:g}, but where sampler and trainer agree {self.measure!r} "
                    f"is {same:g}: every such token would be dropped"
                    + ("." if name == "ceiling" or least < same else "; it takes a ceiling alone.")
                )
        if self.weigh_by == "none" and not self._masks:
            raise ValueError("nothing masks and nothing weighs: give a bound or `weigh_by`.")

    @property
    def _masks(self) -> bool:
        return (self.floor, self.ceiling) != (None, None)

    @property
    def requires(self) -> tuple[str, ...]:
        masks_by_sampler = self._masks and self.between != "new_old"
        sampler = ("logp_rollout",) if masks_by_sampler or self.weigh_by != "none" else ()
        exact = ("kl_old_new",) if self._masks and self.measure == "kl_old_new" else ()
        return tuple(dict.fromkeys((*super().requires, *exact, *sampler)))

    @property
    def traits(self) -> Trait:
        traits = super().traits
        pairs = {f"{self.weigh_of}_rollout"} if self.weigh_by != "none" else set()
        if pairs:
            traits |= spans("sequence" if self.weigh_by in ("sequence", "geometric") else "token")
        if self._masks:
            pairs |= {self.between}
            traits |= Trait.CUTS | spans(self.level)
        if pairs - {"new_old"}:
            traits |= Trait.ACTS_ON_POLICY
        if self.weigh_by != "none":
            traits |= Trait.CORRECTS_SAMPLER
        return traits | (Trait.WEIGHS_OLD_POLICY if pairs == {"old_rollout"} else Trait(0))

    def weight(self, batch: TokenBatch) -> Tensor:
        weight = torch.ones_like(batch.logp_old)  # [batch, time], as everything here
        if self.weigh_by != "none":
            numerator, sampler = _policies(batch, f"{self.weigh_of}_rollout")
            level = "token" if self.weigh_by == "token" else "sequence"
            reduction = "mean" if self.weigh_by == "geometric" else "sum"
            x = levels.reduce(level, reduction, numerator - sampler, batch.mask)
            largest = self.weight_ceiling
            weight = safe_exp(x.clamp(max=_LARGEST)).clamp(self.weight_floor or 0.0, largest)
        if not self._masks:
            return weight
        policies = _policies(batch, self.between)
        if self.measure == "kl_old_new":
            tokens = batch.given("kl_old_new").detach()
        else:
            tokens = _MEASURES[self.measure](*policies)
        value = levels.reduce(self.level, self.reduction, tokens, batch.mask)
        in_unit = math.log if self.measure == "ratio" else float
        low = -math.inf if self.floor is None else in_unit(self.floor)
        high = math.inf if self.ceiling is None else in_unit(self.ceiling)
        kept = (low <= value) & (value <= high)
        if self.only == "negative":
            kept = kept | (batch.advantages >= 0)
        if self.side == "away":
            kept = kept | (batch.advantages * (policies[0] - policies[1]) <= 0)
        return weight * torch.where(value.isnan(), torch.nan, kept.to(value.dtype))


def _policies(batch: TokenBatch, between: str) -> tuple[Tensor, Tensor]:
    """Log-probabilities of two policies, nats, without gradient; each [batch, time].

    Where the sampler gave none, they are the old policy's.
    """
    numerator = batch.logp_old if between == "old_rollout" else batch.logp.detach()
    anchor = "old" if between == "new_old" else "rollout"
    return numerator, batch.against(anchor).logp_old
