"""From a method and a batch to a scalar loss, and to the gradient itself."""

import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from trustclip.constraints import diagnostics
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import Loss, Surrogate, TokenBatch


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
      The loss. Its values under two methods cannot be compared: gates agree in gradients, not in
      values. Compare the metrics.

    Raises:
      ValueError: unknown aggregation, or a field the method requires is missing.

    Warns:
      UserWarning: the method needs the gradient of an exact KL divergence that is detached.

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
    per_token = -surrogate.objective  # [batch, time]
    if Trait.NEEDS_KL_GRADIENT in method.traits and per_token.requires_grad:
        pulling = [name for name in method.requires if name.startswith("kl_")]
        if not any(batch.given(name).requires_grad for name in pulling):
            warnings.warn(
                f"method {method.name!r} pulls along the gradient of {', '.join(pulling)}, which "
                "carries none: pass it with its graph, or there is no pull.",
                stacklevel=2,
            )
    value = aggregate(aggregation, per_token, batch.mask, max_length, total_tokens)
    return Loss(value, per_token, diagnostics.token_metrics(batch, surrogate, method))


def coefficient(method: Method, batch: TokenBatch) -> Tensor:
    r"""Gradient of the method's objective in each token's log-probability: $c_t A_t$.

    The whole update is $\sum_t c_t A_t \nabla\log\pi_\theta(y_t)$, so an engine that can weigh
    log-probabilities by a detached number can train with any method, but for those that need the
    gradient of the exact KL divergence as well (`Trait.NEEDS_KL_GRADIENT`): what flows through
    ``batch.kl_old_new`` is no part of this.

    Args:
      method: the constraint.
      batch: the tokens; a graph behind ``logp`` is not entered.

    Returns:
      $\partial \sum_s J_s / \partial \log\pi_\theta(y_t)$, detached; 0 where masked, NaN where a
      number of the batch is not finite. Shape [batch, time].

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


def gradient(method: Method, batch: TokenBatch) -> tuple[Tensor, Surrogate]:
    """`coefficient`, and the surrogate it is the gradient of (detached)."""
    return next(gradients([method], batch))


def gradients(methods: Iterable[Method], batch: TokenBatch) -> Iterator[tuple[Tensor, Surrogate]]:
    """`gradient` of each method on one batch, which is prepared once."""
    leaf = batch.logp.detach().requires_grad_()
    with torch.enable_grad():
        prepared = batch.with_logp(leaf)
    for method in methods:
        batch.require(*method.requires)
        with torch.enable_grad():
            surrogate = method.surrogate(prepared)
            # The methods share the graph of what prepares a batch.
            (c,) = torch.autograd.grad(surrogate.objective.sum(), leaf, retain_graph=True)
        yield c, surrogate
