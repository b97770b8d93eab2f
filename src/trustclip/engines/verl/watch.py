"""verl: watch verl's or any other loss without changing it: ``loss_mode=trustclip_watch``.

The configured loss is called and its value returned, both unchanged. Which tokens it gated is read
off its gradient in the log-probabilities: those with an advantage and a gradient of 0.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
    get_policy_loss_fn,
    register_policy_loss,
)

from trustclip.constraints.base import Method
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.diagnostics import QUADRANTS
from trustclip.constraints.shadow import Shadows
from trustclip.engines.token_loss import as_floats, means
from trustclip.engines.verl.limits import WATCH, WATCHED, shadows

#: Metrics of a shadow over all tokens: verl averages those of micro-batches and ranks.
_OF_ALL = ("gated", "both", *(f"gated/{name}" for name in QUADRANTS))


@register_policy_loss(WATCH)
def watched_loss(**arguments: Any) -> tuple[Tensor, dict[str, Any]]:
    """The loss that ``policy_loss.watched`` names (``vanilla`` unless set), and our metrics.

    Arguments, by keyword as verl calls it, are those of `trustclip.engines.verl.loss.policy_loss`.
    """
    settings = arguments["config"].policy_loss
    loss, metrics = get_policy_loss_fn(settings.get("watched") or WATCHED)(**arguments)
    if not loss.requires_grad:
        return loss, metrics
    logp, mask = arguments["log_prob"], arguments["response_mask"].bool()
    # Only the graph between the two tensors, which is kept for verl's own backward pass.
    (slope,) = torch.autograd.grad(loss, logp, retain_graph=True)  # [batch, time]
    batch = TokenBatch(logp.detach(), arguments["old_log_prob"], arguments["advantages"], mask)
    unmoved = slope == 0
    if (weights := arguments.get("rollout_is_weights")) is not None:
        unmoved &= weights != 0
    kept = batch.mask & ~(unmoved & (batch.advantages != 0))
    own = means(batch, Surrogate(torch.zeros_like(batch.logp), kept))
    return loss, {**metrics, **as_floats(own), **shadow_means(shadows(settings), batch, kept)}


def shadow_means(methods: Sequence[Method], batch: TokenBatch, kept: Tensor) -> dict[str, float]:
    """Metrics of shadows that verl averages correctly; ``kept`` [batch, time] is the loss's."""
    if not methods:
        return {}
    totals = Shadows(methods)
    # Without coefficients of the acting loss: no mean over tokens is a cosine.
    totals.add(batch, torch.zeros_like(batch.logp_old), kept)
    names = {
        f"shadow/{name}/{key}"
        for i, name in enumerate(totals.labels)
        for key in (*_OF_ALL, *(f"both/{other}" for other in totals.labels[i + 1 :]))
    }
    return {f"trustclip/{k}": v for k, v in totals.read().items() if k in names}
