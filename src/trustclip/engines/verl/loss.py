"""verl: train with any method through its registry of policy losses, with no fork.

Importing this module registers ``trustclip`` (the method that the configuration names) and one
``trustclip_<name>`` for every method with its defaults. verl imports it by itself, in every
process, through the entry point ``verl.plugins``; see `trustclip.engines.verl.plugin`. Of verl this
relies on the registry, `agg_loss` and `PolicyLossConfig`, whose names are public there.

``trustclip_watch`` watches verl's or any other loss without changing it. The configured loss is
called and its value returned, both unchanged. Which tokens it gated is read off its gradient in the
log-probabilities: those with an advantage and a gradient of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
    POLICY_LOSS_REGISTRY,
    agg_loss,
    get_policy_loss_fn,
    register_policy_loss,
)
from verl.workers.config import PolicyLossConfig  # pyright: ignore[reportMissingImports]

from trustclip.constraints.base import Method
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.diagnostics import QUADRANTS
from trustclip.constraints.masked import zero_masked
from trustclip.constraints.shadow import Shadows
from trustclip.engines.token_loss import as_floats, means, per_token_loss
from trustclip.engines.verl.limits import (
    CORRECTION,
    FORWARDED,
    LOSS_MODE,
    LOSS_MODES,
    WATCH,
    WATCHED,
    carries,
    check_watched,
    constraint,
    shadows,
)

#: Metrics of a shadow over all tokens: verl averages those of micro-batches and ranks.
_OF_ALL = ("gated", "both", *(f"gated/{name}" for name in QUADRANTS))


@dataclass
class TrustclipLossConfig(PolicyLossConfig):
    """`verl.workers.config.PolicyLossConfig` with a method: what ``policy_loss._target_`` names.

    verl creates it before anything starts, so a mistake is reported within seconds.

    Args:
      loss_mode: ``"trustclip"``, or ``"trustclip_<name>"``; ``"trustclip_watch"`` trains with
        ``watched`` and only reports.
      method: the constraint: a name (see ``trustclip methods``, or ``"package.module:Class"``),
        or a mapping, for example ``{"name": "atr", "delta": 0.07}``; that of ``loss_mode`` when
        None, else ``"atr"``.
      shadows: methods to watch with, each as ``method`` is given; see
        `trustclip.constraints.shadow`.
      watched: the loss mode that ``"trustclip_watch"`` trains with.

    Raises:
      ValueError: another loss mode, under which the method would be ignored; unknown method or
        hyper-parameter; a method that needs what verl cannot give.

    Example:
      >>> TrustclipLossConfig(method={"name": "kl2", "delta": 0.05}).constraint()
      KL2(delta=0.05, side='outward')
    """

    loss_mode: str = LOSS_MODE
    method: Any = None
    shadows: Any = ()
    watched: str = WATCHED

    def __post_init__(self) -> None:
        shadows(self)
        if self.loss_mode == WATCH:
            check_watched(self, POLICY_LOSS_REGISTRY)
        else:
            constraint(self)

    def constraint(self) -> Method:
        """The method set by the fields."""
        return constraint(self)


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Policy loss of one micro-batch as verl calls it, by keyword.

    Args:
      old_log_prob: of the policy the update started from, nats. Shape [batch, time], as all.
      log_prob: of the current policy, nats; carries the gradient.
      advantages: advantage of each token.
      response_mask: where a token counts.
      loss_agg_mode: how verl aggregates.
      config: verl's actor configuration; its ``policy_loss`` names the method.
      rollout_is_weights: verl's weights that correct for the sampler, if it is configured to. A
        method that needs the sampler's log-probabilities gets them from the weights, which then
        weigh no token: the correction is the method's.

    Returns:
      (loss, metrics): a scalar that summed over micro-batches and averaged over ranks is the loss
      of the whole mini-batch; Python floats, which verl averages over micro-batches and ranks:
      ``trustclip/*``, and those that dashboards for verl show.
    """
    mask = response_mask.bool()
    method = constraint(config.policy_loss)
    rollout = _logp_rollout(config.policy_loss, old_log_prob, rollout_is_weights, mask)
    batch = TokenBatch(log_prob, old_log_prob, advantages, mask, logp_rollout=rollout)
    per_token, surrogate = per_token_loss(method, batch)  # [batch, time]
    if rollout_is_weights is not None and "logp_rollout" not in method.requires:
        per_token = per_token * zero_masked(rollout_is_weights, mask)
    loss = agg_loss(per_token, mask, loss_agg_mode, **config.global_batch_info)
    metrics = as_floats(means(batch, surrogate, method=method))
    own = {"actor/pg_clipfrac": metrics["trustclip/gated"], "actor/ppo_kl": metrics["trustclip/k1"]}
    watching = _shadow_means(shadows(config.policy_loss), batch, surrogate.kept)
    return loss, {**metrics, **own, **watching}


def _logp_rollout(
    settings: Any, old: Tensor, weights: Tensor | None, mask: Tensor
) -> Tensor | None:
    """Log-probabilities of the sampler, where verl's settings let a loss see them, else None."""
    correction = settings.get("rollout_correction") or {}
    if correction.get("bypass_mode"):
        return old
    if not carries(correction):
        return None
    if weights is None:
        raise ValueError(
            f"{FORWARDED} has rollout_is=token, and verl passed no weights: let it be a reference, "
            f"'${{{CORRECTION}}}', and set actor_rollout_ref.rollout.calculate_log_probs=True."
        )
    return old - torch.where(mask, weights, 1.0).log()  # [batch, time]


@register_policy_loss(WATCH)
def watched_loss(**arguments: Any) -> tuple[Tensor, dict[str, Any]]:
    """The loss that ``policy_loss.watched`` names (``vanilla`` unless set), and our metrics.

    Arguments, by keyword as verl calls it, are those of `policy_loss`.
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
    return loss, {**metrics, **as_floats(own), **_shadow_means(shadows(settings), batch, kept)}


def _shadow_means(methods: Sequence[Method], batch: TokenBatch, kept: Tensor) -> dict[str, float]:
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


for _mode in LOSS_MODES:
    register_policy_loss(_mode)(policy_loss)
