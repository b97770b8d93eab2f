"""Stage (a): the head and the library on this device against float64, at the shapes that bite."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trustclip import head
from trustclip.head.exact import ORDERS
from trustclip_lab.bench.gpu.cases import Case, Place, Row, Stage, kernels_in_head
from trustclip_lab.bench.gpu.edges import EDGES
from trustclip_lab.bench.gpu.reference import Reference, gradients, reference
from trustclip_lab.bench.table import Table

#: Largest error allowed, relative to the largest value: of numbers made by float32 sums, of
#: gradients (whose factors have the dtype of the weights), and of what has no rounding floor below.
ALLOWED = {
    torch.float32: {"value": 5e-6, "gradient": 2e-5, "mean": 2e-5},
    torch.bfloat16: {"value": 5e-5, "gradient": 2e-2, "mean": 2e-2},
}


@dataclass(frozen=True)
class Inputs:
    """One problem for the head; tensors are on the device, in the dtype that is tested."""

    hidden: Tensor
    hidden_old: Tensor
    weight: Tensor
    ids: Tensor
    bias: Tensor | None
    grad_logp: Tensor
    grad_entropy: Tensor
    temperature: float = 0.9

    @classmethod
    def of(cls, place: Place, dtype: torch.dtype, scale: float = 3.0) -> "Inputs":
        """Random; logits of a standard deviation of ``scale``."""
        tokens, width, vocabulary = (9, 8, 700) if place.tiny else (1031, 256, 40_009)
        g = torch.Generator(place.device).manual_seed(0)
        random = partial(torch.randn, generator=g, device=place.device)
        weight = random(vocabulary, width) * (scale / math.sqrt(width))
        hidden = random(tokens, width)
        ids = torch.randint(0, vocabulary, (tokens,), generator=g, device=place.device)
        # Half of the tokens are likely ones, as samples are.
        hidden[::2] += (3.0 / scale) * weight[ids[::2]]
        old = hidden + 0.05 * random(tokens, width)
        return cls(
            hidden.to(dtype), old.to(dtype), weight.to(dtype), ids, None,
            random(tokens) / tokens, 0.1 * random(tokens) / tokens,
        )  # fmt: skip

    def rows(self, count: int) -> "Inputs":
        """The first rows alone."""
        names = ("hidden", "hidden_old", "ids", "grad_logp", "grad_entropy")
        return replace(self, **{name: getattr(self, name)[:count] for name in names})


@dataclass
class Checks:
    """Errors next to what is allowed.

    Args:
      errors: by name: largest error, and the largest one that passes.
    """

    errors: dict[str, tuple[float, float]]

    def near(self, name: str, result: Tensor, expected: Tensor, allowed: float) -> None:
        """Compare, relative to the largest expected value, or to 1 if that is larger."""
        if (
            result.shape != expected.shape
            or result.is_floating_point() != expected.is_floating_point()
        ):
            self.errors[name] = (math.inf, allowed)
            return
        expected = expected.double()
        scale = 1.0 if not expected.numel() else max(1e-12, float(expected.abs().max()))
        gap = float((result.detach().double() - expected).abs().max()) if expected.numel() else 0.0
        worst = gap / (scale if "gradient" in name else max(scale, 1.0))
        before = self.errors.get(name, (0.0, allowed))[0]
        self.errors[name] = (math.inf if math.isnan(worst) else max(worst, before), allowed)

    def holds(self, name: str, true: bool) -> None:
        """A yes or no, as an error of 0 or 1."""
        self.errors[name] = (0.0 if true else 1.0, 0.0)

    def values(self) -> dict[str, Any]:
        """As JSON values; an infinite error is a text."""
        errors = {
            name: {"error": e if math.isfinite(e) else str(e), "allowed": a}
            for name, (e, a) in self.errors.items()
        }
        return {"errors": errors, "passes": all(e <= a for e, a in self.errors.values())}


def against(inputs: Inputs, checks: Checks) -> None:
    """The head's every result on the inputs against float64."""
    allowed = ALLOWED[inputs.weight.dtype]
    truth = reference(inputs)
    for trained in (False, True):
        _scores(inputs, truth, trained, allowed, checks)
    options: dict[str, Any] = {"bias": inputs.bias, "temperature": inputs.temperature}
    new, old = (
        head.score(h, inputs.weight, inputs.ids.clamp(min=0), mean=True, **options)
        for h in (inputs.hidden, inputs.hidden_old)
    )
    for order in ORDERS:
        kl = head.exact_kl(inputs.hidden, inputs.hidden_old, inputs.weight, order=order, **options)
        checks.near(f"exact KL {order}", kl, truth.kl[order], allowed["value"])
        # Logits of up to 50 carry 3e-5 nats each, and in half precision the mean has three digits.
        floor = 4 * allowed["mean"] if inputs.weight.dtype != torch.float32 else 2e-4
        bregman = head.bregman_kl(
            inputs.hidden, new, inputs.hidden_old, old, order, temperature=inputs.temperature
        )
        checks.near(f"Bregman KL {order}", bregman, truth.kl[order], floor)
    _likeliest(inputs, truth, options, checks)


def _scores(
    inputs: Inputs, truth: Reference, trained: bool, allowed: dict[str, float], checks: Checks
) -> None:
    hidden = inputs.hidden.clone().requires_grad_()
    weight = inputs.weight.clone().requires_grad_(trained)
    options: dict[str, Any] = {"bias": inputs.bias, "temperature": inputs.temperature}
    for name, grad_entropy in (("", None), (" and entropy", inputs.grad_entropy)):
        hidden.grad = weight.grad = None
        scores = head.score(hidden, weight, inputs.ids, mean=True, **options)
        kind = "trained" if trained else "frozen"
        checks.near(f"log-probability, {kind}", scores.logp, truth.logp, allowed["value"])
        assert scores.entropy is not None and scores.mean is not None
        checks.near(f"entropy, {kind}", scores.entropy, truth.entropy, allowed["value"])
        checks.near("log-partition", scores.log_partition, truth.log_partition, allowed["value"])
        checks.near("mean row", scores.mean, truth.mean, allowed["mean"])
        loss = (scores.logp * inputs.grad_logp).sum()
        if grad_entropy is not None:
            loss = loss + (scores.entropy * grad_entropy).sum()
        loss.backward()
        expected = gradients(inputs, truth, grad_entropy)
        assert hidden.grad is not None
        checks.near(f"gradient of h{name}, {kind}", hidden.grad, expected[0], allowed["gradient"])
        if weight.grad is not None:
            checks.near(f"gradient of W{name}", weight.grad, expected[1], allowed["gradient"])


def _likeliest(inputs: Inputs, truth: Reference, options: dict[str, Any], checks: Checks) -> None:
    """Top K: the tokens, and their log-probabilities."""
    count = min(20, int(truth.logp_all.isfinite().sum(dim=1).min()) if len(truth.logp) else 20)
    count = max(1, min(count, inputs.weight.shape[0] - 1))
    allowed = ALLOWED[inputs.weight.dtype]["value"]
    ids, logp = head.topk(inputs.hidden_old, inputs.weight, count, **options)
    best = truth.logp_all_old.topk(count, dim=1).values
    checks.near("top K, log-probabilities", logp, best, allowed)
    checks.near("top K, tokens", truth.logp_all_old.gather(1, ids), best, 10 * allowed)


def _case(change: Callable[[Inputs], Inputs], dtype: torch.dtype, scale: float = 3.0) -> Any:
    def run(place: Place) -> dict[str, Any]:
        checks, inputs = Checks({}), change(Inputs.of(place, dtype, scale))
        against(inputs, checks)
        if place.cuda:
            with kernels_in_head():
                against(inputs, checks)  # of each check the larger error counts
        return checks.values()

    return run


def _minus_infinity(inputs: Inputs, share: float) -> Inputs:
    """A bias of -inf for tokens that no row was drawn from: scattered, or the end of the list."""
    vocabulary = len(inputs.weight)
    bias = torch.zeros(vocabulary, device=inputs.weight.device, dtype=inputs.weight.dtype)
    if share < 0:
        bias[int((1 + share) * vocabulary) :] = -torch.inf
        return replace(inputs, bias=bias, ids=inputs.ids % int((1 + share) * vocabulary))
    bias[:: round(1 / share)] = -torch.inf
    bias[inputs.ids.clamp(min=0)] = 0.25
    return replace(inputs, bias=bias)


def _non_contiguous(inputs: Inputs) -> Inputs:
    """The same numbers in memory that is not contiguous."""

    def apart(x: Tensor) -> Tensor:
        return torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0]

    return replace(
        inputs,
        hidden=inputs.hidden.T.contiguous().T,
        hidden_old=apart(inputs.hidden_old),
        weight=apart(inputs.weight),
        ids=apart(inputs.ids),
        grad_logp=apart(inputs.grad_logp),
    )


def _skip_rows(inputs: Inputs, every: int) -> Inputs:
    ids = inputs.ids.clone()
    ids[::every] = -100
    return replace(inputs, ids=ids)


def cases(place: Place) -> Sequence[Case]:
    """All of them."""
    same = lambda x: x  # noqa: E731
    single, half = torch.float32, torch.bfloat16
    return [
        Case("float32", _case(same, single)),
        Case("bfloat16", _case(same, half)),
        Case("peaked", _case(same, single, scale=12.0)),
        Case("peaked, bfloat16", _case(same, half, scale=12.0)),
        Case("a bias of -inf", _case(partial(_minus_infinity, share=0.1), single)),
        Case("masked vocabulary, bfloat16", _case(partial(_minus_infinity, share=-0.4), half)),
        Case("no row", _case(lambda x: x.rows(0), single)),
        Case("one row", _case(lambda x: x.rows(1), single)),
        Case("some rows skipped", _case(partial(_skip_rows, every=3), half)),
        Case("all rows skipped", _case(partial(_skip_rows, every=1), single)),
        Case("not contiguous", _case(_non_contiguous, single)),
        *(Case(name, run, seconds) for name, run, seconds in EDGES),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line a case: how many checks, how many fail, and the one nearest to its bound."""
    lines: list[tuple[Any, ...]] = []
    for row in rows:
        errors = (row.values or {}).get("errors", {})
        ranked = sorted(errors.items(), key=lambda item: -_share(item[1]))
        failing = [name for name, check in errors.items() if _share(check) > 1]
        worst, check = ranked[0] if ranked else ("–", {"error": None, "allowed": None})
        verdict = "passes" if not failing else f"FAILS: {', '.join(failing)}"
        lines.append((row.key, len(errors), verdict, worst, check["error"], check["allowed"]))
    columns = ("case", "checks", "verdict", "nearest to its bound", "error", "allowed")
    notes = [
        "Errors are the largest over all entries, of gradients relative to the largest entry, of "
        "others relative to the largest value above 1; the reference is float64 on the same "
        "rounded inputs."
    ]
    return [Table("Against float64", columns, lines, notes)] if lines else []


def _share(check: dict[str, Any]) -> float:
    error = math.inf if isinstance(check["error"], str) else check["error"]
    return error / check["allowed"] if check["allowed"] else (2.0 if error else 0.0)


STAGE = Stage("Correctness", 2.0, cases, tables)
