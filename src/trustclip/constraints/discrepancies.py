"""What is different between the gradient of a loss and that of a method, in sentences."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.hard_batches import Case
from trustclip.constraints.masked import zero_masked

#: An explanation is right where it predicts a quotient of two gradients within this share.
_EXPLAINED = 0.02
#: An explanation of fewer of the tokens is a coincidence; the rest are edges of its cap.
_NEARLY_ALL = 0.95
#: Half precision may lose this share of a gradient.
_ROUNDED = 0.25
_UNEXPLAINED = "The coefficient is another one, and no single weight or cap explains it"


@dataclass(frozen=True)
class Difference:
    """One way in which a loss differs from a method, and the first token that shows it.

    Args:
      cause: short name, such as ``"cap"``.
      verdict: what is different, without the full stop.
      tokens: how many tokens differ in this way.
      where: batch, sequence and place of the first of them; empty where no token shows it.
      numbers: its ratio, old probability and advantage, the method's coefficient and the loss's.
    """

    cause: str
    verdict: str
    tokens: int = 0
    where: tuple[str, int, int] | tuple[()] = ()
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        if not self.where:
            return f"{self.verdict}."
        batch, row, place = self.where
        ratio, p_old, advantage, ours, theirs = self.numbers
        many = "1 token shows" if self.tokens == 1 else f"{self.tokens} tokens show"
        return (
            f"{self.verdict}. {many} it. The first is token {place} of "
            f"sequence {row} of the batch {batch!r}: its ratio is {ratio:.4g}, its old probability "
            f"{p_old:.4g}, its advantage {advantage:.4g}. Its coefficient should be {ours:.4g}; "
            f"that of the loss is {theirs:.4g}."
        )


class Compared(NamedTuple):
    """Two gradients on one batch. Each tensor [batch, time], float64."""

    case: Case
    ours: Tensor  # the method's coefficient
    theirs: Tensor  # that of the loss
    wrong: Tensor  # where they differ


def _wrong(compared: Sequence[Compared]) -> dict[str, Tensor]:
    """What is known of the tokens that differ, of all batches, by name. Each [tokens]."""
    parts = []
    for number, (case, ours, theirs, _) in enumerate(compared):
        given, mask = case.given, case.batch.mask  # [batch, time], as all of a part
        row, place = torch.meshgrid(*map(torch.arange, mask.shape), indexing="ij")
        sampler = case.batch.rollout_log_ratio  # old / sampler; 0 where the sampler gave no number
        parts.append(
            {
                **{"case": torch.full_like(row, number), "row": row, "place": place},
                "half": torch.full_like(mask, case.dtype != torch.float32),
                "masked": ~mask,
                "log_ratio": given["logp"] - given["logp_old"],
                "sampler": sampler,
                "sequence": zero_masked(sampler, mask).sum(dim=1, keepdim=True).expand_as(sampler),
                **{name: given[name] for name in ("logp", "logp_old", "advantages")},
                **{"ours": ours, "theirs": theirs, "quotient": theirs / ours},
            }
        )
    pairs = [*zip(parts, compared, strict=True)]
    return {
        name: torch.cat([part[name].detach()[one.wrong] for part, one in pairs])
        for name in parts[0]
    }


#: A cause, what to say of it, and the tokens that it explains.
_Explanation = tuple[str, str, Tensor]


def differences(compared: Sequence[Compared]) -> Iterator[Difference]:
    """What is different, each cause once, that of the most tokens first."""
    wrong = _wrong(compared)
    left, found = torch.ones_like(wrong["masked"]), [*_plain(wrong)]
    for _, _, where in found:
        left = left & ~where
    if left.any():
        best = max(_quotients(wrong, left), key=lambda one: int(one[2].sum()))
        if int(best[2].sum()) >= _NEARLY_ALL * int(left.sum()):
            found.append((*best[:2], left))
        else:
            found.append(("unexplained", _UNEXPLAINED, left))
    for cause, verdict, where in sorted(found, key=lambda one: -int(one[2].sum())):
        if where.any():
            first = {name: x[where][0].item() for name, x in wrong.items()}
            place = compared[int(first["case"])].case.name, int(first["row"]), int(first["place"])
            ratio, p_old = math.exp(first["log_ratio"]), math.exp(first["logp_old"])
            numbers = ratio, p_old, *(first[name] for name in ("advantages", "ours", "theirs"))
            yield Difference(cause, verdict, int(where.sum()), place, numbers)


def _plain(wrong: dict[str, Tensor]) -> Iterator[_Explanation]:
    """What shows at a token by itself; no two of them share one."""
    left = torch.ones_like(wrong["masked"])
    rounded = wrong["half"] & ((wrong["quotient"] - 1).abs() < _ROUNDED)
    for cause, verdict, among in (
        ("mask", "Masked tokens have a gradient", wrong["masked"]),
        ("finite", "The gradient is not finite", ~wrong["theirs"].isfinite()),
        ("advantage", "A token without advantage has a gradient", wrong["advantages"] == 0),
        ("gate", "The gate is another one: the loss keeps tokens that the method cuts",
         wrong["ours"] == 0),
        ("gate", "The gate is another one: the loss cuts tokens that the method keeps",
         wrong["theirs"] == 0),
        ("rounding", "The loss is computed in bfloat16, and rounded: widen its input to float32",
         rounded),
    ):  # fmt: skip
        yield cause, verdict, left & among
        left = left & ~among


def _quotients(wrong: dict[str, Tensor], among: Tensor) -> Iterator[_Explanation]:
    """Why two coefficients that are not 0 differ, by what their quotient is."""
    q = torch.where(among, wrong["quotient"], 1.0)

    def close(predicted: Tensor) -> Tensor:
        return among & ((q / predicted - 1).abs() < _EXPLAINED)

    text = "At ratio 1 half of the gradient is lost: a `min` or `max` ties with a constant branch"
    yield "tie", text, close(torch.full_like(q, 0.5)) & (wrong["log_ratio"].abs() < 1e-6)
    yield from _normalisers(wrong, q, among)
    yield "sign", "The sign is wrong: the loss goes against the advantage", among & (q < 0)
    text = "A weight is not detached: the loss has its derivative, too"
    yield "weight", text, close(1 + wrong["logp"])
    ours, theirs = ((c / wrong["advantages"]).abs() for c in (wrong["ours"], wrong["theirs"]))
    weights = {
        "sampler's weight": wrong["sampler"].exp(),
        "sampler's weight of the sequence": wrong["sequence"].exp(),
        "ratio": wrong["log_ratio"].exp(),
    }
    pairs = {name: (weight, weight) for name, weight in weights.items()}
    for name, (own, its) in {**pairs, "whole coefficient": (ours, theirs)}.items():
        for text, of in (("A cap is left out", its / q), ("The loss has a further cap", own * q)):
            cap = of[among].median()
            here = close(of * q / cap) & ((cap - 1).abs() > _EXPLAINED)
            yield "cap", f"{text}: that of the {name}, at {cap:.4g}", here
    for name, weight in {**weights, "method's own weight": ours / weights["ratio"]}.items():
        for verb, of in (("applied once too often", q), ("missing", 1 / q)):
            cap = of[among].max()  # the weight may have one
            here = among & ((of / weight.clamp(max=float(cap)) - 1).abs() < _EXPLAINED)
            yield "weight", f"A weight is {verb}: the {name}", here & (weight != 1)


def _normalisers(wrong: dict[str, Tensor], q: Tensor, among: Tensor) -> Iterator[_Explanation]:
    """Quotients that are one number in each batch, or in each sequence."""
    sequence = wrong["case"] * (1 + wrong["row"].max()) + wrong["row"]
    for groups, text in (
        (wrong["case"], "The loss is divided by another number in some batches"),
        (sequence, "Sequences weigh otherwise: the loss divides each by another number"),
    ):
        constant = torch.zeros_like(among)
        for group in groups[among].unique():
            values = q[own := among & (groups == group)]
            if len(values) > 1 and ((values / values.median() - 1).abs() < _EXPLAINED).all():
                constant = constant | own
        yield "normaliser", text, constant
