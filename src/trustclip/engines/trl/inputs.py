"""TRL's input dictionary: reading a `TokenBatch` from it, writing a method's gradient into it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import MAX_LOG_RATIO

#: Prefix of the names of batch statistics.
STATISTICS = "statistics/"

#: Key of the updates since each completion was sampled, where the engine knows it. Shape [batch].
LAG = "trustclip_lag"

#: A bound of TRL's clip below this rounds to 0 when TRL computes it from an offset.
_LEAST_BOUND = 1e-6


def token_mask(inputs: Mapping[str, Any]) -> Tensor:
    """True for completion tokens that no tool has added. Shape [batch, time]."""
    return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()


def token_batch(
    inputs: Mapping[str, Any],
    logp: Tensor,
    logp_old: Tensor,
    first_key: int,
    **measured: Any,
) -> TokenBatch:
    """Build the `TokenBatch` of an input dictionary; ``measured`` are further fields.

    Log-probabilities are in nats, [batch, time]; ``first_key`` is the number of the first
    completion of the update, among all of the run.
    """
    advantages = inputs["advantages"]
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(logp)
    statistics = {
        name.removeprefix(STATISTICS): value
        for name, value in inputs.items()
        if name.startswith(STATISTICS)
    }
    position = torch.arange(logp.shape[1], device=logp.device)
    # Tools can lengthen a completion past its limit; 2^20 positions hold any context.
    keys = (first_key + inputs["sample_index"])[:, None] * (1 << 20) + position
    has_old = "old_per_token_logps" in inputs  # else the policy in training is the old one
    optional: dict[str, Any] = {
        "entropy_old": inputs.get("entropy_old") if has_old else measured.get("entropy"),
        "keys": keys,
        "logp_rollout": inputs.get("sampling_per_token_logps"),
        "logp_ref": inputs.get("ref_per_token_logps"),
        "lag": None if (lag := inputs.get(LAG)) is None else lag.long()[:, None].expand_as(keys),
        "statistics": statistics or None,
        **measured,
    }
    return TokenBatch(logp, logp_old, advantages.to(logp.dtype), token_mask(inputs), **optional)


@torch.no_grad()
def inject(
    inputs: dict[str, Any],
    batch: TokenBatch,
    c: Tensor,
    surrogate: Surrogate,
    pull: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Replace the advantages so that TRL's loss has the method's gradient.

    TRL's token loss is $-\min(wA, \mathrm{clip}(w, 1-\epsilon, 1+\epsilon')A)$. With $c/w$ for $A$
    and an open clip its gradient is $-c$. A token that the method has cut has no gradient but a
    value $J$: the clip gets a bound that its ratio is beyond, whatever the method's own bound, and
    $A$ such that the loss is $-J$ there. Then the logged loss is the one that TRL itself logs for a
    clip. Where a kept token's objective differs from $c$ (soft gates, stopped gradients), its
    value in the loss is $-c$.

    The method's gradient in tokens that were not sampled is attached to the advantages: TRL
    multiplies them by $w$, or by the bound, and by the token's weight in its loss.

    Args:
      inputs: gets ``advantages``, and ``old_per_token_logps`` that are finite where masked.
      batch: the tokens.
      c: gradient of the objective in each log-probability, see `trustclip.coefficient`.
        Shape [batch, time].
      surrogate: the method's, of these tokens.
      pull: of value 0, with the gradient of the objective in the candidates. Shape [batch, time].

    Returns:
      (low, high): offsets $\epsilon, \epsilon'$ of the clip. Both [batch, time].
    """
    x = batch.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # [batch, time], as all below
    w = x.exp()
    if (old := inputs.get("old_per_token_logps")) is not None:
        # TRL takes the exponential of every token, masked ones and runaways too.
        harmless = batch.mask & (x == batch.log_ratio)
        inputs["old_per_token_logps"] = torch.where(harmless, old, batch.logp - x)
    value = surrogate.objective.detach()
    positive = value > 0
    # Bounds of the clip that the ratio exceeds on the side that the minimum selects.
    beyond = torch.where(positive, (w / 2).clamp(max=1), (w * 2).clamp(min=1))
    cut = (c == 0) & (value != 0) & ~(beyond < _LEAST_BOUND)
    high = torch.where(cut & positive, beyond - 1, torch.inf)
    low = torch.where(cut & ~positive, 1 - beyond, torch.inf)
    bound = torch.where(positive, 1 + high, 1 - low)  # as TRL computes it
    advantages = torch.where(cut, value / bound, c / w)
    if pull is not None:
        with torch.enable_grad():
            advantages = advantages + pull / torch.where(cut, bound, w)
    inputs["advantages"] = advantages
    return low, high
