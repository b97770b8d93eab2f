"""The gradient of TRL's loss in each log-probability, known while the head computes it.

The head of a model in full fine-tuning then computes its gradient in the forward pass; see
`trustclip.head.foreseen`, which checks what arrives. Nothing here can make a gradient wrong.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.masked import zero_masked
from trustclip.engines.trl.inputs import token_mask
from trustclip.head.foreseen import Foresee
from trustclip.head.policy import foreseeing

#: TRL's losses whose gradient in a token is the method's times a number known before the pass.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: Optional fields of `TokenBatch` that do not come from the policy in training.
KNOWN_BEFORE = ("logp_rollout", "groups", "keys", "lag")


@contextlib.contextmanager
def announce(
    trainer: Any, inputs: dict[str, Any], rows: Tensor | None, on_policy: bool
) -> Iterator[None]:
    """Announce the loss's coefficients to the head of a trainer's model for the block's passes.

    The trainer takes the fast path ``"foresight"``; ``rows`` are the completions that are scored.
    """
    old = inputs.get("old_per_token_logps")
    mask = token_mask(inputs)
    # The head supplies the current log-probabilities; without old ones they serve as those, too.
    before = torch.zeros(mask.shape, device=mask.device) if old is None else old
    batch = trainer._tokens(inputs, before, before)
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    shares = weights(inputs, mask, trainer.loss_type, corrected)
    scored = torch.arange(len(mask), device=mask.device) if rows is None else rows

    def of_pass(shape: tuple[int, int]) -> Foresee | None:
        if shape[0] != len(scored):
            return None  # the pass scores only a part of them
        # The last positions of a pass are the completion's; earlier ones have no label.
        length, width = mask.shape[1], shape[1]
        time = torch.arange(length - width, length, device=mask.device).clamp(min=0)  # [width]
        places = (scored[:, None] * length + time).flatten()  # [completions * width]
        return foreseeing(trainer.method, batch, places, shares, on_policy or old is None)

    if trainer.method.statistics_over is None or batch.statistics is not None:
        trainer._request.foresee = of_pass
    try:
        yield
    finally:
        trainer._request.foresee = None


def weights(inputs: Mapping[str, Any], mask: Tensor, loss_type: str, corrected: bool) -> Tensor:
    """Minus the weight of each token in TRL's loss [batch, time], up to a factor that all share.

    ``corrected``: TRL multiplies by its correction for vLLM.
    """
    shares = -mask.float()
    if loss_type == "grpo":
        shares = shares / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return zero_masked(shares * inputs["importance_sampling_ratio"], mask) if corrected else shares
