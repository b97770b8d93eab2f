"""What TRL's loss will make of each log-probability, known while the head makes it.

The head of a model in full fine-tuning then makes its gradient in the forward pass; see
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

#: TRL's losses whose gradient in a token is the method's times a number that is known before.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

#: Optional fields of `TokenBatch` that do not come from the policy in training.
KNOWN_BEFORE = ("logp_rollout", "groups", "keys", "lag")


@contextlib.contextmanager
def told(
    trainer: Any, inputs: dict[str, Any], rows: Tensor | None, on_policy: bool
) -> Iterator[None]:
    """Tell the head of a trainer's model what the loss will do, for the passes in the block.

    The trainer takes the fast path ``"foresight"``; ``rows`` are the completions that are scored.
    """
    old = inputs.get("old_per_token_logps")
    mask = token_mask(inputs)
    # The head makes the log-probabilities of now; without old ones it takes its own for them.
    before = torch.zeros(mask.shape, device=mask.device) if old is None else old
    batch = trainer._tokens(inputs, before, before)
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    shares = weights(inputs, mask, trainer.loss_type, corrected)
    scored = torch.arange(len(mask), device=mask.device) if rows is None else rows

    def of_pass(shape: tuple[int, int]) -> Foresee | None:
        if shape[0] != len(scored):
            return None  # a part of them
        # Of the positions of a pass the last are the completion's; others are never asked for.
        length, width = mask.shape[1], shape[1]
        time = torch.arange(length - width, length, device=mask.device).clamp(min=0)  # [width]
        places = (scored[:, None] * length + time).flatten()
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
    found = -mask.float()
    if loss_type == "grpo":
        found = found / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return zero_masked(found * inputs["importance_sampling_ratio"], mask) if corrected else found
