"""The rules that every method keeps, tried on small made-up batches; see `trustclip.check`."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from trustclip.constraints import gates, probes
from trustclip.constraints.base import Method, Trait, of_own_token
from trustclip.constraints.batch import SUPPLIERS, Surrogate, TokenBatch
from trustclip.constraints.gradients import derivative

#: Two coefficients are the same number up to this relative difference.
_SAME = 1e-4
#: Log-ratio of a token that has hardly moved, nats. Every useful threshold is above it.
_HARDLY = 1e-6
#: Up to this log-ratio a soft gate has a gradient, nats; far beyond, it rounds to 0.
_NEAR = 1.0
#: Single tokens are tried up to this log-ratio (nats), at so many places, for each of these old
#: probabilities.
_FAR, _PLACES, _P_OLD = 4.0, 16, (0.01, 0.6)
#: A log-ratio whose ratio is too large for float32, nats.
_EXTREME = 100.0


@dataclass(frozen=True)
class Fault:
    """A rule that a method breaks, in a sentence, and the token that shows it.

    Args:
      rule: short name of the rule.
      verdict: what is wrong, without the full stop.
      token: ratio, advantage, ``kept`` and coefficient of the token; None where no token shows it.
    """

    rule: str
    verdict: str
    token: tuple[float, float, bool, float] | None = None

    def __str__(self) -> str:
        if self.token is None:
            return f"{self.verdict}."
        ratio, advantage, kept, coefficient = self.token
        return (
            f"{self.verdict} (ratio {ratio:.4g}, advantage {advantage:.4g}, kept {kept}, "
            f"coefficient {coefficient:.4g})."
        )


def faults(method: Method) -> tuple[Fault, ...]:
    """The rules that a method breaks, each once.

    Beyond the rules for all methods, a method may do what it declares: by `Method.traits`,
    `Method.requires` and `Method.statistics_over`.

    Example:
      >>> import trustclip as tc
      >>> faults(tc.method("tis", inner="gspo"))
      ()
    """
    by_rule: dict[str, Fault] = {}
    try:
        # A set device makes every operation call Python, so it is set only where it must be.
        with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            for fault in _faults(method):
                by_rule.setdefault(fault.rule, fault)
    except _BrokenError as error:
        by_rule.setdefault(error.args[0].rule, error.args[0])
    except Exception as error:  # whatever the method's own code raises
        reason = " ".join(str(error).split())
        by_rule["runs"] = Fault("runs", f"It raises {type(error).__name__}: {reason}")
    return tuple(by_rule.values())


def _faults(method: Method) -> Iterator[Fault]:
    for name in method.requires:
        if name not in SUPPLIERS:
            raise _BrokenError(Fault("runs", f"`requires` names {name!r}, which no batch has"))
    right = probes.ragged(method, seed=1, left=False, per_token=False)
    left = probes.ragged(method, seed=2, left=True, per_token=True)
    alone = probes.changed(left, lambda x: x.reshape(-1, 1))
    for batch in (right, left, alone):
        answer = ask(method, batch)
        if answer.differs(ask(method, batch)).any():
            yield Fault("repeats", "Two calls on the same batch give different gradients")
            return
        yield from of_tokens(method, answer)
        yield from _masked(method, answer)
        yield from _on_policy(method, batch, per_token=batch is not right)
        yield from _nan(method, batch)
    for batch in (right, left):
        yield from _others(method, batch)
    yield from _gate(method)
    yield from _extreme(method)


class _BrokenError(ValueError):
    """A method that gives no gradient at all; its argument is the `Fault`."""


class Answer(NamedTuple):
    """What a method says of a batch."""

    batch: TokenBatch
    c: Tensor  # the coefficient. Shape [batch, time]
    kept: Tensor  # Shape [batch, time]

    def faults(self, wrong: Tensor, rule: str, verdict: str) -> Iterator[Fault]:
        """A fault with the first unmasked token that is wrong, if there is one."""
        wrong = wrong & self.batch.mask
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            numbers = (self.batch.log_ratio.double().exp(), self.batch.advantages, self.c)
            ratio, advantage, c = (float(x.detach()[at]) for x in numbers)
            yield Fault(rule, verdict, (ratio, advantage, bool(self.kept[at]), c))

    def differs(self, other: "Answer") -> Tensor:
        """Where another answer has another coefficient or gate. Shape [batch, time]."""
        scale = self.c.abs().maximum(other.c.abs()) + _SAME
        same = ((self.c - other.c).abs() <= _SAME * scale) | (self.c.isnan() & other.c.isnan())
        return self.batch.mask & (~same | (self.kept != other.kept))


def ask(method: Method, batch: TokenBatch) -> Answer:
    """Gradient and gate of a method on a batch.

    Raises:
      ValueError: they do not have the form of a gradient and a gate.
    """
    leaf = batch.logp.detach().requires_grad_()
    with torch.enable_grad():
        surrogate = method.surrogate(replace(batch, logp=leaf))
    if problem := _malformed(surrogate, batch):
        raise _BrokenError(Fault("form", problem))
    c = derivative(surrogate.objective, leaf)
    if c is None:
        text = "The objective has no gradient: it is detached from `batch.logp`"
        raise _BrokenError(Fault("gradient", text))
    return Answer(batch, c, surrogate.kept)


def _malformed(surrogate: object, batch: TokenBatch) -> str | None:
    if not isinstance(surrogate, Surrogate):
        return f"`surrogate` returns {type(surrogate).__name__}, not a Surrogate"
    for name, dtype in (("objective", batch.logp.dtype), ("kept", torch.bool)):
        value = getattr(surrogate, name)
        if not isinstance(value, Tensor):
            return f"`{name}` is {type(value).__name__}, not a tensor"
        if value.shape != batch.logp.shape:
            return f"`{name}` has shape {list(value.shape)}, not {list(batch.logp.shape)}"
        if value.dtype != dtype:
            return f"`{name}` is {value.dtype}, not {dtype}"
    return None


def of_tokens(method: Method, answer: Answer) -> Iterator[Fault]:
    """Where gate, gradient, advantage and traits contradict each other."""
    (batch, c, kept), traits = answer, method.traits
    a, finite = batch.advantages, batch.finite
    yield from answer.faults(finite & ~c.isfinite(), "finite", "The gradient is not finite")
    if Trait.REVERSES not in traits:
        text = "`kept` does not match the gradient: it is false for a token with a gradient"
        yield from answer.faults(finite & ~kept & (c != 0), "kept", text)
        text = "The gradient goes against the advantage"
        yield from answer.faults(finite & (c * a < 0), "sign", text)
    if Trait.MOVES_WITHOUT_ADVANTAGE not in traits:
        text = "A token without advantage has a gradient"
        yield from answer.faults(finite & (c != 0) & (a == 0), "advantage", text)
    if Trait.CUTS not in traits:
        text = "`kept` is false for a token, and `traits` lacks CUTS"
        yield from answer.faults(finite & ~kept, "cuts", text)


def _masked(method: Method, answer: Answer) -> Iterator[Fault]:
    """The same tokens with more padding on both sides, and with other numbers in it."""
    batch, (before, after) = answer.batch, (5, 6)

    def padded(x: Tensor) -> Tensor:
        blank = False if x.dtype == torch.bool else 7
        return pad(torch.where(batch.mask, x, x.new_full((), blank)), (before, after), value=blank)

    again = ask(method, probes.changed(batch, padded))
    inner = slice(before, -after)
    again = Answer(batch, again.c[:, inner], again.kept[:, inner])
    text = "The result depends on masked tokens: it changes with more padding"
    yield from answer.faults(answer.differs(again), "masked", text)


def _on_policy(method: Method, batch: TokenBatch, per_token: bool) -> Iterator[Fault]:
    """All policies are one: the gradient is the advantage, unless the method declares another."""
    answer = ask(method, probes.on_policy(batch))
    yield from of_tokens(method, answer)
    shares = Trait.MOVES_WITHOUT_ADVANTAGE in method.traits  # the advantages of a sequence
    if Trait.ACTS_ON_POLICY in method.traits or (shares and per_token):
        return
    c, a = answer.c, batch.advantages
    far = (c - a).abs() > _SAME * (a.abs() + _SAME)
    for wrong, text in (
        (c == 0, "A token is cut at ratio 1, before anything has moved"),
        (c * a < 0, "At ratio 1 the gradient goes against the advantage"),
        (far, "At ratio 1 the gradient is not the advantage, and `traits` lacks ACTS_ON_POLICY"),
    ):
        yield from answer.faults(far & wrong, "on policy", text)


def _nan(method: Method, batch: TokenBatch) -> Iterator[Fault]:
    """A log-probability that is NaN must reach the loss or the gradient."""
    there = torch.zeros_like(batch.mask)
    there[tuple(batch.mask.nonzero()[3].tolist())] = True
    answer = ask(method, replace(batch, logp=batch.logp.masked_fill(there, torch.nan)))
    seen = ~(answer.c + method.surrogate(answer.batch).objective).isfinite()
    text = "A log-probability of NaN is hidden: objective and gradient are numbers"
    yield from answer.faults(there & ~seen, "nan", text)


def _others(method: Method, batch: TokenBatch) -> Iterator[Fault]:
    """Other completions, or other tokens of a completion, matter only where it is declared."""
    if method.statistics_over == "micro_batch" or "groups" in method.requires:
        return
    if method.statistics_over == "generation":
        batch = replace(batch, statistics=method.statistics(batch))
    whole = ask(method, batch)

    def part(change: Callable[[Tensor], Tensor], rule: str, verdict: str) -> Iterator[Fault]:
        some = replace(probes.changed(batch, change), statistics=batch.statistics)
        answer = Answer(some, change(whole.c), change(whole.kept))
        yield from answer.faults(answer.differs(ask(method, some)), rule, verdict)

    text = "A gradient depends on other completions, and `statistics_over` does not declare it"
    yield from part(lambda x: x[:1], "completions", text)
    yield from part(lambda x: x[len(x) // 2 :], "completions", text)
    if of_own_token(method):
        text = "A gradient depends on other tokens or its place, and `traits` lacks SEES_OTHERS"
        yield from part(lambda x: x.reshape(-1, 1), "tokens", text)


def _gate(method: Method) -> Iterator[Fault]:
    """The gate of a single token over its ratio, for both signs of the advantage."""
    answers = []
    for p_old in _P_OLD:
        reach = min(_FAR, -math.log(p_old) - 1e-3)  # no probability above 1
        x = torch.linspace(-_FAR, reach, _PLACES, dtype=torch.float64)
        x = torch.cat([x.new_tensor([-_HARDLY, _HARDLY]), x[x.abs().argsort()]])
        inside = _inside(method, p_old).clamp(-_FAR, reach)
        x = torch.cat([inside, x])
        stated = (torch.arange(len(x)) < len(inside))[:, None]
        for sign in (1.0, -1.0):
            answer = _singly(method, x, torch.full_like(x, math.log(p_old)), sign)
            answers.append(answer)
            yield from of_tokens(method, answer)
            text = "`kept` does not match the gradient: it is true for a token without gradient"
            near = answer.batch.log_ratio.abs() < _NEAR
            yield from answer.faults(near & answer.kept & (answer.c == 0), "kept", text)
            text = "The gate closes inside the interval that `log_interval` states"
            yield from answer.faults(stated & ~answer.kept, "interval", text)
            if Trait.ACTS_ON_POLICY not in method.traits:
                text = "The gate closes on tokens that have hardly moved from ratio 1"
                hardly = answer.batch.log_ratio.abs() < 2 * _HARDLY
                yield from answer.faults(hardly & (answer.c == 0), "threshold", text)
    yield from _direction(answers)


def _inside(method: Method, p_old: float) -> Tensor:
    """Log-ratios just inside the interval that a method states; none where it states none."""
    try:
        bounds = method.log_interval(torch.tensor(p_old, dtype=torch.float64))
    except ValueError:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([0.999 * torch.as_tensor(bound, dtype=torch.float64) for bound in bounds])


def _singly(method: Method, x: Tensor, old: Tensor, sign: float) -> Answer:
    batch = probes.single(method, x, old, sign)
    if method.statistics_over != "micro_batch":
        return ask(method, batch)
    # A statistic over a batch must not mix ratios.
    tokens = zip(x.split(1), old.split(1), strict=True)
    each = [ask(method, probes.single(method, *token, sign)) for token in tokens]
    return Answer(batch, torch.cat([one.c for one in each]), torch.cat([one.kept for one in each]))


def _direction(answers: Sequence[Answer]) -> Iterator[Fault]:
    """A gate that for either sign cuts steps back to ratio 1, and none that lead away from it."""
    back: dict[float, Answer] = {}
    for answer in answers:
        batch, cut = answer.batch, ~answer.kept
        if (cut & gates.moves_outward(batch.log_ratio, batch.advantages)).any():
            return
        if cut.any():
            back.setdefault(float(batch.advantages[0]), answer)
    if len(back) == 2:
        text = "The gate is the wrong way round: it cuts only steps that lead back to ratio 1"
        yield from back[1.0].faults(~back[1.0].kept, "direction", text)


def _extreme(method: Method) -> Iterator[Fault]:
    """Ratios at which ``exp`` overflows in float32."""
    x = torch.tensor([_EXTREME, -_EXTREME])
    old = torch.tensor([-_EXTREME, 0.0]) - 0.01
    for sign in (1.0, -1.0, 0.0):
        answer = ask(method, probes.single(method, x, old, sign))
        text = "The gradient is not finite at a ratio beyond float32: write gates.safe_exp for exp"
        yield from answer.faults(~answer.c.isfinite(), "finite", text)
