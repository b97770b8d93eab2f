"""From a method and a batch to a scalar loss, and to the gradient itself."""

from typing import Any

import torch
from torch import Tensor

from trustclip import diagnostics
from trustclip.aggregation import aggregate
from trustclip.batch import Loss, TokenBatch
from trustclip.method import Method


def policy_loss(
    method: Method,
    batch: TokenBatch,
    aggregation: str = "token_mean",
    max_length: int | None = None,
    total_tokens: int | Tensor | None = None,
) -> Loss:
    r"""Loss of a method on a batch: minus its aggregated objective.

    Args:
      method: the constraint; see `trustclip.method`.
      batch: the tokens.
      aggregation: ``"token_mean"``, ``"sequence_mean"``, ``"dr_grpo"`` or ``"dapo"``.
      max_length: longest completion allowed, tokens; `dr_grpo` divides by it.
      total_tokens: tokens of the whole update; `dapo` divides by it.

    Returns:
      The loss. Its value under one method says nothing next to its value under another: gates
      agree in gradients, not in values. Compare the metrics.

    Raises:
      ValueError: unknown aggregation, or a field the method requires is missing.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> loss = policy_loss(tc.method("atr"), batch, aggregation="dr_grpo", max_length=4)
      >>> round(loss.value.item(), 4)
      -0.342
    """
    batch.require(*method.requires)
    surrogate = method.surrogate(batch)
    per_token = -surrogate.objective
    value = aggregate(aggregation, per_token, batch.mask, max_length, total_tokens)
    return Loss(value, per_token, diagnostics.token_metrics(batch, surrogate, method))


def coefficient(method: Method, batch: TokenBatch) -> Tensor:
    r"""Gradient of the method's objective in each token's log-probability: $c_t A_t$.

    The whole update is $\sum_t c_t A_t \nabla\log\pi_\theta(y_t)$, so an engine that can weigh
    log-probabilities by a detached number can train with any method.

    Args:
      method: the constraint.
      batch: the tokens; a graph behind ``logp`` is not entered.

    Returns:
      $\partial \sum_s J_s / \partial \log\pi_\theta(y_t)$, detached; 0 where masked.
      Shape [batch, time].

    Raises:
      ValueError: a field the method requires is missing.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[0.4, 0.9]]).log(), torch.tensor([[0.5, 0.3]]).log(),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> coefficient(tc.method("atr"), batch)
      tensor([[0.8000, 0.0000]])
    """
    return gradient(method, batch)[0]


def gradient(method: Method, batch: TokenBatch) -> tuple[Tensor, Any]:
    """`coefficient`, and the surrogate it is the gradient of (detached)."""
    batch.require(*method.requires)
    with torch.enable_grad():
        leaf = batch.logp.detach().requires_grad_()
        surrogate = method.surrogate(batch.with_logp(leaf))
        (c,) = torch.autograd.grad(surrogate.objective.sum(), leaf)
    return c, surrogate
