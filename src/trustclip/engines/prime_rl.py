"""prime-rl: the function that ``[trainer.loss] type = "custom"`` imports.

::

    [trainer.loss]
    type = "custom"
    import_path = "trustclip.engines.prime_rl.loss"

    [trainer.loss.kwargs]
    method = "atr"
    method_args = { delta = 0.07 }
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.registry import method as named
from trustclip.engines.limits import check
from trustclip.engines.token_loss import means, per_token_loss


def loss(
    inputs: Any,
    method: str = "atr",
    method_args: Mapping[str, Any] | None = None,
    max_importance_ratio: float = 1e4,
) -> Any:
    """Loss of one sequence: a masked sum, divided by prime-rl by the update's number of tokens.

    The old policy is the one that sampled: prime-rl has no other.

    Args:
      inputs: prime-rl's ``LossInputs``, 1-D tensors.
      method: name of the constraint.
      method_args: its hyper-parameters.
      max_importance_ratio: largest ratio that a method sees, as in prime-rl's own losses: a token
        that was next to impossible for the sampler would outweigh an update. Metrics are of the
        ratios as they are.

    Returns:
      prime-rl's ``LossOutputs``; it averages the metrics over sequences.

    Raises:
      ValueError: unknown method or hyper-parameter, or a method that needs more than this.
    """
    from prime_rl.trainer.rl.loss import LossOutputs  # pyright: ignore[reportMissingImports]

    chosen = check(named(method, **(method_args or {})), "prime-rl")
    sampler = inputs.inference_logprobs[None]
    batch = TokenBatch(
        inputs.trainer_logprobs[None],
        sampler,
        inputs.advantages[None],
        inputs.loss_mask[None],
        logp_rollout=sampler,
    )
    capped = batch.capped(max_importance_ratio)
    capped = replace(capped, logp_rollout=capped.logp_old)
    per_token, surrogate = per_token_loss(chosen, capped)
    if inputs.loss_weights is not None:
        per_token = per_token * inputs.loss_weights
    return LossOutputs(loss=per_token.sum(), metrics=means(batch, surrogate))
