"""The gradient of a method's objective in each token's log-probability."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.batch import Surrogate, TokenBatch, as_batch


def gradient(method: Method, batch: TokenBatch) -> tuple[Tensor, Surrogate]:
    """`trustclip.coefficient`, and the surrogate it is the gradient of (detached)."""
    return next(gradients([method], batch))


def gradient_with_candidates(method: Method, batch: TokenBatch) -> tuple[Tensor, Tensor, Surrogate]:
    """`gradient` of a method that also moves tokens which were not sampled, and theirs.

    Returns:
      The gradient in each log-probability, [batch, time], in that of each candidate,
      [batch, time, candidates], and the surrogate.
    """
    batch.require(*method.requires)
    leaf, among = batch.logp.detach().requires_grad_(), batch.given("candidates")
    candidate_leaf = among.logp.detach().requires_grad_()
    candidates = replace(among, logp=candidate_leaf)
    with torch.enable_grad():
        surrogate = method.surrogate(replace(batch, logp=leaf, candidates=candidates))
        c, c_candidates = torch.autograd.grad(surrogate.objective.sum(), (leaf, candidate_leaf))
    return c, c_candidates, surrogate


def gradients(methods: Iterable[Method], batch: TokenBatch) -> Iterator[tuple[Tensor, Surrogate]]:
    """`gradient` of each method on one batch, which is prepared once."""
    leaf = as_batch(batch).logp.detach().requires_grad_()
    prepared = batch.having(logp=leaf)
    for method in methods:
        batch.require(*method.requires)
        with torch.enable_grad():
            surrogate = method.surrogate(prepared)
        c = derivative(surrogate.objective, leaf)
        if c is None:
            raise ValueError(
                f"the objective of {method.name!r} has no gradient: it is detached from "
                "`batch.logp`, or torch.inference_mode is on. See trustclip check."
            )
        yield c, surrogate


def derivative(objective: Tensor, leaf: Tensor) -> Tensor | None:
    """The derivative of the sum of an objective, whose graph stays; None where it has none."""
    if not objective.requires_grad:
        return None
    # Several methods share the graph that prepares the batch.
    with torch.enable_grad():
        return torch.autograd.grad(objective.sum(), leaf, retain_graph=True, allow_unused=True)[0]
