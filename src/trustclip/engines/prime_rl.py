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

import torch

from trustclip.constraints.base import moves_candidates
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.candidates import Candidates
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

    The old policy is the one that sampled: prime-rl has no other. ``centered`` reads the tokens
    that the sampler's mask kept, with their log-probabilities, which prime-rl passes for top-p,
    top-k and min-p. A sequence without them is left uncentered, as in prime-rl's own losses; the
    metric ``trustclip/uncentered`` is their share.

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
      ValueError: unknown method or hyper-parameter; a method that needs more than this;
        ``centered`` in a prime-rl whose ``LossInputs`` have no ``trainer_mask_logprobs``.
    """
    from prime_rl.trainer.rl.loss import LossOutputs  # pyright: ignore[reportMissingImports]

    chosen = check(named(method, **(method_args or {})), "prime-rl")
    centers = moves_candidates(chosen)
    sampler = inputs.inference_logprobs[None]
    batch = TokenBatch(
        inputs.trainer_logprobs[None],
        sampler,
        inputs.advantages[None],
        inputs.loss_mask[None],
        logp_rollout=sampler,
        candidates=_candidates(inputs) if centers else None,
    )
    capped = batch.capped(max_importance_ratio)
    capped = replace(capped, logp_rollout=capped.logp_old)
    per_token, surrogate = per_token_loss(chosen, capped)
    if inputs.loss_weights is not None:
        per_token = per_token * inputs.loss_weights
    metrics = means(batch, surrogate)
    if centers:
        missing = inputs.inference_mask_logprobs is None
        metrics["trustclip/uncentered"] = torch.tensor(float(missing), device=sampler.device)
    return LossOutputs(loss=per_token.sum(), metrics=metrics)


def _candidates(inputs: Any) -> Candidates:
    """The tokens that the sampler kept at each position; none where prime-rl passes none."""
    if not hasattr(inputs, "trainer_mask_logprobs"):
        raise ValueError(
            "`centered` needs log-probabilities of all that the sampler could draw, and this "
            "prime-rl passes none to a loss: it does since September 2026. Name the inner method "
            "instead."
        )
    trainer, sampler = inputs.trainer_mask_logprobs, inputs.inference_mask_logprobs
    if trainer is None or sampler is None:
        trainer = inputs.trainer_logprobs[:, None]
        sampler = torch.full_like(trainer, -torch.inf)
    return Candidates(trainer[None], sampler[None], sampler[None])
