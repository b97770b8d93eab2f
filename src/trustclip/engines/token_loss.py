"""Per-token loss and metrics, for engines that call a loss on every micro-batch."""

import torch
from torch import Tensor

from trustclip.constraints import diagnostics
from trustclip.constraints.base import Method, moves_candidates
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.gradients import gradient, gradient_with_candidates

#: These metrics are of a part of the tokens: engines average the means of micro-batches, and a
#: micro-batch without such a token has none.
_OF_A_PART = "advantage_cut"

#: Part of the names of metrics over completions of a micro-batch.
_OF_SEQUENCES = "/sequence_"


def per_token_loss(chosen: Method, batch: TokenBatch) -> tuple[Tensor, Surrogate]:
    r"""Minus the objective, with the gradient of each token and its candidates in its own entry.

    The value is $-J_t$ and the gradient that of $-c_t A_t \log\pi_\theta(y_t)$. The two
    sums have one gradient, but only here does a weight on an entry weigh that token alone: at
    sequence level $J_t$ depends on every token of its sequence.

    Returns:
      (per-token loss, surrogate); the loss is 0 where masked. Shape [batch, time].

    Example:
      >>> import trustclip as tc
      >>> logp = torch.tensor([[-1.0, -0.2]], requires_grad=True)
      >>> batch = tc.TokenBatch(logp, torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> loss, surrogate = per_token_loss(tc.method("atr"), batch)
      >>> loss.sum().backward()
      >>> logp.grad
      tensor([[-1., -0.]])
    """
    if not moves_candidates(chosen):
        c, surrogate = gradient(chosen, batch)  # [batch, time]
        return -(surrogate.objective.detach() + c * _no_value(batch.logp)), surrogate
    c, further, surrogate = gradient_with_candidates(chosen, batch)
    moved = (further * _no_value(batch.given("candidates").logp)).sum(dim=2)  # [batch, time]
    return -(surrogate.objective.detach() + c * _no_value(batch.logp) + moved), surrogate


def _no_value(x: Tensor) -> Tensor:
    """A tensor of zeros with the gradient of another one."""
    return x - x.detach()


@torch.no_grad()
def means(
    batch: TokenBatch,
    surrogate: Surrogate,
    tokens: Tensor | None = None,
    method: Method | None = None,
) -> dict[str, Tensor]:
    """Token sums of `trustclip.constraints.diagnostics.token_metrics` over the number of tokens.

    Shares of a subset of the tokens are left out: no engine averages those correctly. Of whole
    completions there is the mean ratio to the sampler, over those of the micro-batch, and the mean
    of its square: the square of the one over the other is the effective sample size. They are left
    out, too, with ``tokens``, the number of tokens of the update, for engines that sum.
    """
    count = batch.mask.sum().clamp(min=1) if tokens is None else tokens
    metrics = {}
    pairs = diagnostics.token_metrics(batch, surrogate, method, parts=False)
    for name, (total, own) in pairs.items():
        if name == _OF_A_PART:
            continue
        if _OF_SEQUENCES not in name:
            metrics[f"trustclip/{name}"] = total / count
        elif tokens is None:
            metrics[f"trustclip/{name}"] = total / own.clamp(min=1)
    return metrics


def as_floats(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Scalars as Python floats, with one transfer from the device."""
    return dict(zip(metrics, torch.stack([*metrics.values()]).tolist(), strict=True))
