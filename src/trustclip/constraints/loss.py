"""From a method and a batch to a scalar loss, and to the gradient itself."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import diagnostics
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import Loss, Surrogate, TokenBatch
from trustclip.constraints.registry import as_method


def policy_loss(
    method: Method | str | Mapping[str, Any],
    batch: TokenBatch,
    aggregation: str = "token_mean",
    max_length: int | None = None,
    total_tokens: int | Tensor | None = None,
) -> Loss:
    r"""Loss of a method on a batch: minus its aggregated objective.

    Args:
      method: the constraint, its name, or a mapping; see `trustclip.as_method`.
      batch: the tokens.
      aggregation: ``"token_mean"``, ``"sequence_mean"``, ``"dr_grpo"`` or ``"dapo"``.
      max_length: longest completion allowed, tokens; `dr_grpo` divides by it.
      total_tokens: tokens of the whole update; `dapo` divides by it.

    Returns:
      The loss. Its values under two methods cannot be compared: gates agree in gradients, not in
      values. Compare the metrics.

    Raises:
      ValueError: unknown method or aggregation, a field the method requires is missing, or the
        method needs the gradient of an exact KL divergence that is detached while ``logp`` is not.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.0]]),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> loss = policy_loss("atr", batch, aggregation="dr_grpo", max_length=4)
      >>> round(loss.value.item(), 4)
      -0.342
    """
    method = as_method(method)
    batch.require(*method.requires)
    _require_pull(method, batch)
    surrogate = method.surrogate(batch)
    per_token = -surrogate.objective  # [batch, time]
    value = aggregate(aggregation, per_token, batch.mask, max_length, total_tokens)
    return Loss(value, per_token, diagnostics.token_metrics(batch, surrogate, method))


def _require_pull(method: Method, batch: TokenBatch) -> None:
    # Without gradients at all the values are wanted, and they are right.
    if Trait.NEEDS_KL_GRADIENT not in method.traits or not batch.logp.requires_grad:
        return
    pulling = [name for name in method.requires if name.startswith("kl_")]
    if torch.is_grad_enabled() and not any(batch.given(name).requires_grad for name in pulling):
        raise ValueError(
            f"method {method.name!r} pulls along the gradient of `{'`, `'.join(pulling)}`, which "
            "is detached: compute it from the current policy's logits and keep its graph."
        )


def coefficient(method: Method | str | Mapping[str, Any], batch: TokenBatch) -> Tensor:
    r"""Gradient of the method's objective in each token's log-probability: $c_t A_t$.

    The whole update is $\sum_t c_t A_t \nabla\log\pi_\theta(y_t)$, so an engine that can weigh
    log-probabilities by a detached number can train with any method, but for those that need the
    gradient of the exact KL divergence as well (`Trait.NEEDS_KL_GRADIENT`): what flows through
    ``batch.kl_old_new`` is no part of this.

    Args:
      method: the constraint, its name, or a mapping; see `trustclip.as_method`.
      batch: the tokens; a graph behind ``logp`` is not entered.

    Returns:
      $\partial \sum_s J_s / \partial \log\pi_\theta(y_t)$, detached; 0 where masked, NaN where a
      number of the batch is not finite. Shape [batch, time].

    Raises:
      ValueError: unknown method, or a field it requires is missing.

    Example:
      >>> import trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[0.4, 0.9]]).log(), torch.tensor([[0.5, 0.3]]).log(),
      ...                       torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> coefficient("atr", batch)
      tensor([[0.8000, 0.0000]])
    """
    return gradient(as_method(method), batch)[0]


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
