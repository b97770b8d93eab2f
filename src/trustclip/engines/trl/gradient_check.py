"""Whether TRL's loss has the method's gradient: looked at once, on an untested release."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.masked import zero_masked
from trustclip.engines.trl import upstream
from trustclip.engines.trl.inputs import token_mask
from trustclip.engines.trl.phases import Training

#: Rounding changes a token's gradient by at most this share, of itself and of the largest.
_WITHIN = 1e-3


def verified(trainer: Any, phase: Training, loss: Tensor) -> bool:
    """Compare the gradient in each log-probability that a loss gives with the method's.

    The loss is linear in the advantages that it was given. So its gradient in them, times the
    advantages, is the method's part of it, without a KL penalty or an entropy bonus.

    Returns:
      False where no token of the micro-batch has a gradient to compare.

    Raises:
      RuntimeError: they differ by more than a factor that all tokens share.
    """
    logps, advantages = phase.logps, phase.inputs["advantages"]
    assert logps is not None and phase.gate is not None
    mask = token_mask(phase.inputs)
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    # Up to one positive factor. Both [batch, time].
    want = _weights(phase.inputs, mask, trainer.loss_type, corrected) * phase.gate[2]
    if not want.any():
        return False
    got = torch.zeros_like(want)
    (slope,) = torch.autograd.grad(loss, advantages, create_graph=True, allow_unused=True)
    if slope is not None and slope.requires_grad:
        part = (slope * advantages.detach()).sum()
        (got,) = torch.autograd.grad(part, logps, retain_graph=True, materialize_grads=True)
    if trainer.top_entropy_quantile < 1 or trainer.args.off_policy_mask_threshold is not None:
        want = torch.where(got == 0, 0, want)  # TRL leaves some tokens out
    without = (
        "its loss does not read the advantages once it has the log-probabilities, where those "
        f"of {trainer.method.name!r} stand"
    )
    return _compared(got, want, trainer.method, "" if slope is not None else without)


def same(loss: Tensor, logps: Tensor, want: Tensor, method: Method) -> bool:
    """Compare the gradient of a loss in log-probabilities with minus what it should be.

    Returns:
      False where no token has a gradient to compare.

    Raises:
      RuntimeError: they differ by more than a factor that all tokens share.
    """
    if not want.any():
        return False
    (got,) = torch.autograd.grad(loss, logps, retain_graph=True, materialize_grads=True)
    return _compared(got, -want, method)


def _compared(got: Tensor, want: Tensor, method: Method, why: str = "") -> Literal[True]:
    """Raise a RuntimeError, for the reason ``why`` if any, unless two gradients are alike."""
    factor = (got * want).sum() / want.square().sum().clamp(min=torch.finfo().tiny)
    apart = (got - factor * want).abs()
    wrong = apart > _WITHIN * (factor * want).abs().clamp(min=_WITHIN * got.abs().max())
    if factor > 0 and not wrong.any():
        return True
    reason = why or (
        f"at {int(wrong.sum())} of {int((want != 0).sum())} tokens the gradient that its loss "
        f"sends back to the log-probabilities is not that of {method.name!r}"
    )
    raise RuntimeError(
        f"trl {upstream.RELEASE} does not train by the method: {reason}. This release was not "
        f"tested with trustclip; install one that was: {', '.join(upstream.TESTED)}."
    )


def _weights(inputs: Mapping[str, Any], mask: Tensor, loss_type: str, corrected: bool) -> Tensor:
    """Minus the weight of each token in TRL's loss [batch, time], up to a factor that all share.

    ``corrected``: TRL multiplies by its correction for vLLM.
    """
    shares = -mask.float()
    if loss_type == "grpo":
        shares = shares / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return zero_masked(shares * inputs["importance_sampling_ratio"], mask) if corrected else shares
