"""From a method and a batch to a scalar loss, and to the gradient itself."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import diagnostics
from trustclip.constraints.aggregation import aggregate
from trustclip.constraints.base import Method, Trait
from trustclip.constraints.batch import Loss, TokenBatch, as_batch
from trustclip.constraints.compiled import constant
from trustclip.constraints.gradients import gradient as gradient
from trustclip.constraints.registry import as_method


def policy_loss(
    method: Method | str | Mapping[str, Any],
    batch: TokenBatch,
    aggregation: str = "token_mean",
    max_length: int | None = None,
    total_tokens: int | Tensor | None = None,
) -> Loss:
    r"""Loss of a method on a batch: minus its aggregated objective.

    ``torch.compile(policy_loss, fullgraph=True)`` is one graph for every method that measures no
    statistics of a batch (``method.statistics_over is None``), and for the others where the batch
    has them. A method is a constant there: build it once, and leave one that adapts uncompiled,
    and ``centered``, whose coefficients are gradients themselves.

    Args:
      method: the constraint, its name, or a mapping; see `trustclip.as_method`.
      batch: the tokens.
      aggregation: ``"token_mean"``, ``"sequence_mean"``, ``"dr_grpo"`` or ``"dapo"``.
      max_length: longest completion allowed, tokens; `dr_grpo` divides by it.
      total_tokens: tokens of the whole update; `dapo` divides by it.

    Returns:
      The loss; its metrics are made when they are read. Its values under two methods cannot be
      compared: gates agree in gradients, not in values. Compare the metrics.

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
    if torch.compiler.is_compiling() and not isinstance(method, Method):
        raise ValueError(
            f"torch.compile needs a method that is already built: tc.method({method!r})"
        )
    method = as_method(method)
    requires, kl_fields = _requirements(method)
    as_batch(batch).require(*requires)
    _require_kl_gradient(method, kl_fields, batch)
    surrogate = method.surrogate(batch)
    per_token = -surrogate.objective  # [batch, time]
    value = aggregate(aggregation, per_token, batch.mask, max_length, total_tokens)
    return Loss(value, per_token, partial(diagnostics.token_metrics, batch, surrogate, method))


@constant
def _requirements(method: Method) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields that a method requires, and those of them whose gradient it follows."""
    requires = method.requires
    follows_kl = Trait.NEEDS_KL_GRADIENT in method.traits
    return requires, tuple(name for name in requires if follows_kl and name.startswith("kl_"))


def _require_kl_gradient(method: Method, kl_fields: tuple[str, ...], batch: TokenBatch) -> None:
    # Without gradients only the values are needed, and they are right.
    if not kl_fields or not batch.logp.requires_grad or not torch.is_grad_enabled():
        return
    if not any(batch.given(name).requires_grad for name in kl_fields):
        raise ValueError(
            f"method {method.name!r} pulls along the gradient of `{'`, `'.join(kl_fields)}`, "
            "which is detached: compute it from the current policy's logits and keep its graph."
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
