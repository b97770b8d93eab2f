"""Whether the loss of any trainer has the gradient of a method; see `trustclip.conform`."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.base import Method, moves_candidates
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.discrepancies import Compared, Difference, differences
from trustclip.constraints.gradients import derivative, gradient
from trustclip.constraints.hard_batches import Case, cases
from trustclip.constraints.notation import spelled
from trustclip.constraints.registry import as_method
from trustclip.support.names import unknown

#: A loss: it takes fields of `TokenBatch` by name and returns a scalar.
LossFunction = Callable[..., Tensor]

#: Two gradients are the same number up to this relative difference, in float32 and in bfloat16.
_SAME = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
#: A token this close to an edge of the gate (nats) may fall on either side of it by rounding.
_AT_EDGE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
#: A coefficient of this share of the importance-weighted advantage counts as 0.
_NOTHING = 1e-6


@dataclass(frozen=True)
class Conformance:
    """The result of `conform`: true where the loss has the method's gradient; as text, sentences.

    Args:
      method: the method.
      aggregation: how the loss adds up its tokens: a key of `AGGREGATIONS`.
      factor: number by which the whole loss is multiplied.
      tokens: how many were compared.
      cases: names of the batches.
      differences: what is different; empty where nothing is.
    """

    method: Method
    aggregation: str
    factor: float
    tokens: int
    cases: tuple[str, ...]
    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        name = spelled(self.method.to_dict())
        if self.differences:
            return "\n- ".join([f"The loss is not {name}.", *map(str, self.differences)])
        times = "" if self.factor == 1 else f", times {self.factor:g}"
        return (
            f"The loss is {name}: {self.tokens} tokens of {len(self.cases)} hard batches have its "
            f"gradient. The loss is {AGGREGATIONS[self.aggregation].words}{times}."
        )


def conform(
    loss: LossFunction,
    method: Method | str | Mapping[str, Any],
    aggregation: str | None = None,
    leave_out: Sequence[str] = (),
) -> Conformance:
    r"""Whether the loss of any trainer has the gradient of a method, on batches made to be hard.

    With $g_t$ the derivative of the loss in ``logp`` and $c_t A_t$ the method's `coefficient`, the
    loss conforms if $g_t = -f u_t\, c_t A_t$ at every token of every batch, for one number $f$ and
    the weights $u_t$ of one aggregation. The batches have padding on either side, holes, tokens of
    probability 1e-11, ratios up to $e^{12}$, log-ratios 5 % within and beyond each bound of the
    method, sequences of one token and of none, advantages of 0, ratios of exactly 1, and
    log-probabilities in bfloat16. A loss gets further batches by what it names: see ``loss``.

    Args:
      loss: a function that wraps the trainer's. It names the fields of `TokenBatch` that it takes
        (``logp, logp_old, advantages, mask, ...``), each [batch, time], and returns a scalar.
        ``logp_rollout=None`` gets one more batch, with None for it. ``segment_id``, the number of
        each token's sequence, gets one more whose sequences stand in one row without padding.
        ``total_tokens`` and ``total_sequences`` get two more, which come in parts, with the numbers
        of all ranks; if the loss names ``ranks``, gradients are averaged over ranks, else added up.
      method: what the loss is meant to be; see `trustclip.as_method`.
      aggregation: a key of `AGGREGATIONS`, such as ``"token_mean"``; any of them when None.
      leave_out: names of batches that the trainer never makes; see `cases`.

    Raises:
      ValueError: an unknown aggregation or batch; a method that moves tokens which were not
        sampled; a loss that names a field which no batch has, or returns no scalar.

    Example:
      >>> def clipped(logp, logp_old, advantages, mask):
      ...     ratio = (logp - logp_old).exp()
      ...     kept = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
      ...     return -(kept * mask).sum() / mask.sum()
      >>> conform(clipped, "clip(0.2)").aggregation
      'token_mean'
      >>> print(conform(clipped, "clip(0.1)").differences[0].verdict)
      The gate is another one: the loss keeps tokens that the method cuts
    """
    method = as_method(method)
    if moves_candidates(method):
        raise ValueError(
            f"{method.name!r} moves tokens that were not sampled, too, and only the gradient of "
            "those that were is compared here."
        )
    if aggregation is not None and aggregation not in AGGREGATIONS:
        raise ValueError(unknown("aggregation", aggregation, AGGREGATIONS))
    named, tried = _named(loss), {one.name: one for one in cases(method)}
    leave_out = [leave_out] if isinstance(leave_out, str) else leave_out
    for name in leave_out:
        if name not in tried:
            raise ValueError(unknown("batch", name, tried))
    answers = [
        _Gradients.of(one, method, loss, named)
        for one in tried.values()
        if one.name not in leave_out and _takes(loss, named, one)
    ]
    if not answers:
        raise ValueError("no batch is left to compare on: leave fewer out.")
    names = tuple(answer.case.name for answer in answers)
    if not any(answer.theirs.any() for answer in answers):
        text = "The loss has no gradient in `logp`: the ratio, or the loss, is detached"
        return Conformance(method, "", 0.0, 0, names, (Difference("detached", text),))
    fits = [
        fit
        for name in ([aggregation] if aggregation else AGGREGATIONS)
        for fit in _Fit.candidates(name, answers)
    ]
    best = min(fits, key=lambda fit: fit.doubt)  # of equals the first
    tokens = sum(int(answer.comparable.sum()) for answer in answers)
    return Conformance(method, best.aggregation, best.factor, tokens, names, best.differences)


def assert_conforms(
    loss: LossFunction,
    method: Method | str | Mapping[str, Any],
    aggregation: str | None = None,
    leave_out: Sequence[str] = (),
) -> None:
    """Fail a test, in the sentences of `conform`, if a loss is not a method.

    Args:
      loss: as in `conform`, and so are the others.
      method: what the loss is meant to be.
      aggregation: how it must add up its tokens; any way when None.
      leave_out: names of batches that the trainer never makes.

    Raises:
      AssertionError: the loss has another gradient.
      ValueError: the two cannot be compared.

    Example:
      >>> def minus_ratio(logp, logp_old, advantages, mask):
      ...     return -((logp - logp_old).exp() * advantages * mask).sum() / mask.sum()
      >>> assert_conforms(minus_ratio, "importance_sampling", "token_mean")
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if not (found := conform(loss, method, aggregation, leave_out)):
        raise AssertionError(str(found))


def _named(loss: LossFunction) -> set[str]:
    """Names of the arguments that a loss takes.

    Raises:
      ValueError: one of them is no field of a batch.
    """
    allowed = [f.name for f in fields(TokenBatch) if f.name not in _OF_NO_TRAINER]
    allowed += _COUNTS
    parameters = inspect.signature(loss).parameters.values()
    names = {one.name for one in parameters if one.default is one.empty or one.name in allowed}
    for name in sorted(names.difference(allowed)):
        raise ValueError(unknown("argument", name, allowed, of="the loss"))
    return names


_OF_NO_TRAINER = ("statistics", "packing", "density")
#: A loss may also name these, which are no fields of a batch.
_COUNTS = ("total_tokens", "total_sequences", "ranks", "segment_id")


def _takes(loss: LossFunction, named: set[str], case: Case) -> bool:
    """Whether a loss names what a batch is hard in."""
    if case.given["logp_rollout"] is None:
        rollout = inspect.signature(loss).parameters.get("logp_rollout")
        return rollout is not None and rollout.default is None
    if case.packed is not None:
        return "segment_id" in named
    return case.parts == 1 or not named.isdisjoint(("total_tokens", "total_sequences"))


# -- gradients -------------------------------------------------------------------------------------


class _Gradients(NamedTuple):
    """Gradients on one batch. Each tensor [batch, time], float64."""

    case: Case
    ours: Tensor  # the coefficient
    theirs: Tensor  # minus the derivative of the loss
    comparable: Tensor  # unmasked, and not at an edge of the gate

    @classmethod
    def of(cls, case: Case, method: Method, loss: LossFunction, named: set[str]) -> "_Gradients":
        batch = case.batch
        ours, surrogate = gradient(method, batch)
        comparable = batch.mask.clone()
        if batch.log_ratio.any():  # else nothing is rounded
            for shift in (-_AT_EDGE[case.dtype], _AT_EDGE[case.dtype]):
                _, moved = gradient(method, replace(batch, logp=batch.logp + shift))
                comparable &= moved.kept == surrogate.kept
        rows = torch.arange(len(ours)).chunk(case.parts)
        theirs = -torch.cat([_derivative(loss, named, case, some) for some in rows])
        if "ranks" in named:
            theirs = theirs / case.parts
        return cls(case, ours, theirs, comparable)


def _derivative(loss: LossFunction, named: set[str], case: Case, rows: Tensor) -> Tensor:
    """Derivative of a loss in ``logp``, on some sequences of a batch.

    Raises:
      ValueError: the loss takes what the batch has not, or returns no scalar.
    """
    mask = case.batch.mask
    counts = {
        "total_tokens": int(mask.sum()),
        "total_sequences": len(mask),
        "ranks": case.parts,
        "segment_id": torch.arange(len(rows))[:, None].expand(-1, mask.shape[1]),
    }
    given: dict[str, Any] = {name: counts[name] for name in named.intersection(_COUNTS)}
    for name in named.difference(_COUNTS):
        if name not in case.given:
            raise ValueError(
                f"the loss takes `{name}`, which the method does not read: give it a constant in "
                "your wrapper."
            )
        if (value := case.given[name]) is None:
            given[name] = None
            continue
        value = value[rows]
        kept = torch.float32 if name == "advantages" else case.dtype
        given[name] = value.to(kept) if value.is_floating_point() else value
    leaf = given["logp"] = given["logp"].detach().requires_grad_()
    if case.packed is not None:
        rowed = {name: x[case.packed][None] for name, x in given.items() if isinstance(x, Tensor)}
        given |= rowed
    value = loss(**given)
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a scalar tensor; it returns {kind}.")
    found = derivative(value, leaf)
    return torch.zeros_like(leaf, dtype=torch.float64) if found is None else found.double()


# -- aggregations ----------------------------------------------------------------------------------


class _Aggregation(NamedTuple):
    words: str
    weights: Callable[[Tensor], Tensor]  # of the mask: weight of each token


def _of(rule: str, filled: bool = False, **numbers: int) -> Callable[[Tensor], Tensor]:
    """The weights of `trustclip.constraints.aggregation.aggregate`, which is linear in its tokens.

    Args:
      rule: name of the aggregation.
      filled: whether sequences without a token are left out before.
      **numbers: what the rule reads.
    """

    def weights(mask: Tensor) -> Tensor:
        x = torch.zeros_like(mask, dtype=torch.float64).requires_grad_()
        rows = mask.any(dim=1) if filled else torch.ones_like(mask[:, 0])
        total = aggregate(rule, x[rows], mask[rows], **numbers)
        return torch.autograd.grad(total, x)[0]

    return weights


#: How a loss may add up its tokens, with the weight of each.
AGGREGATIONS = {
    "token_mean": _Aggregation("a mean over all tokens", _of("token_mean")),
    "sequence_mean": _Aggregation(
        "a mean over sequences of the mean of each", _of("sequence_mean")
    ),
    "filled_sequence_mean": _Aggregation(
        "a mean over sequences of the mean of each, without empty ones",
        _of("sequence_mean", filled=True),
    ),
    "sequence_sum_mean": _Aggregation(
        "a mean over sequences of the sum of each", _of("dr_grpo", max_length=1)
    ),
    "filled_sequence_sum_mean": _Aggregation(
        "a mean over sequences of the sum of each, without empty ones",
        _of("dr_grpo", filled=True, max_length=1),
    ),
    "place_mean": _Aggregation(
        "a mean over all places, padding too",
        lambda mask: _of("dr_grpo", max_length=mask.shape[1])(mask),
    ),
    "sum": _Aggregation("a sum over all tokens", _of("dapo", total_tokens=1)),
}


class _Fit(NamedTuple):
    """How a loss compares with a method under one aggregation and one factor."""

    aggregation: str
    factor: float
    compared: tuple[Compared, ...]  # of each batch
    differences: tuple[Difference, ...]

    @classmethod
    def candidates(cls, aggregation: str, answers: Sequence[_Gradients]) -> Iterator["_Fit"]:
        """With the factor 1, with that of most tokens, and with that of those of ratio 1."""
        weights = [AGGREGATIONS[aggregation].weights(answer.case.batch.mask) for answer in answers]
        quotients, still = [], []
        for answer, weight in zip(answers, weights, strict=True):
            expected = weight * answer.ours
            both = answer.comparable & (expected != 0) & (answer.theirs != 0)
            quotients.append((answer.theirs / expected)[both])
            if not answer.case.batch.log_ratio.any():
                still.append(quotients[-1])
        medians = [float(torch.cat(some).nanmedian()) for some in (quotients, still) if some]
        for median in (1.0, *medians):
            if math.isfinite(median) and median:
                factor = 1.0 if abs(median - 1) < _SAME[torch.float32] else median
                pairs = zip(answers, weights, strict=True)
                compared = tuple(_compared(answer, factor * weight) for answer, weight in pairs)
                flipped = [
                    Difference("sign", "The sign is wrong: the loss goes against the advantage")
                ]
                found = (*(flipped if factor < 0 else ()), *differences(compared))
                yield cls(aggregation, factor, compared, found)

    @property
    def doubt(self) -> int:
        """How many tokens speak against it: a factor is believed if it explains most of them."""
        wrong = sum(int(one.wrong.sum()) for one in self.compared)
        unexplained = sum(one.tokens for one in self.differences if one.cause == "unexplained")
        return wrong * (1 if self.factor == 1 else 2) + unexplained


def _compared(answer: _Gradients, weight: Tensor) -> Compared:
    """The loss's coefficient beside the method's, if the tokens have these weights."""
    ours, given = answer.ours, answer.case.given
    # A gradient of padding is shown at the weight of the largest token.
    theirs = answer.theirs / torch.where(weight == 0, weight.abs().max(), weight)
    size = theirs.abs().maximum(ours.abs())
    ratio = (given["logp"] - given["logp_old"]).detach().exp()
    least = _NOTHING * ratio.clamp(min=1) * given["advantages"].abs()
    near = (theirs - ours).abs() <= _SAME[answer.case.dtype] * size + least
    return Compared(answer.case, ours, theirs, (answer.comparable | ~given["mask"]) & ~near)
