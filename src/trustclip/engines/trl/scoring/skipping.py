"""Skipping completions that cannot move the policy: no passes, but counted in the normaliser."""

from typing import Any

import torch
from torch import Tensor

from trustclip.constraints.selection import with_advantage
from trustclip.engines.trl.inputs import token_mask

#: Inputs of TRL that are not indexed by row alone (images), so that rows cannot be left out.
_TIED = ("pixel_values", "token_type_ids", "mm_token_type_ids", "image_sizes", "num_images")


@torch.no_grad()
def rows_that_matter(inputs: dict[str, Any]) -> Tensor | None:
    """Indices of the completions with an advantage on an unmasked token; None for all.

    At least one is returned: every rank must take part in every forward and backward pass.
    """
    if any(inputs.get(name) is not None for name in _TIED):
        return None
    advantages = inputs["advantages"]
    by_token = advantages if advantages.dim() == 2 else advantages[:, None]
    matters = with_advantage(by_token, token_mask(inputs))  # [batch]
    rows = matters.nonzero().squeeze(1)  # the only point that waits for a GPU
    if len(rows) == len(matters):
        return None
    return rows if len(rows) else rows.new_zeros(1)


def widen(
    inputs: dict[str, Any], rows: Tensor, logps: Tensor, entropies: Tensor
) -> tuple[Tensor, Tensor]:
    """Extend results of some rows to all rows: the others count as if at the old policy.

    Skipped rows get the mean entropy of the computed ones, so that the mean over all tokens stays;
    ``entropy_old`` in the inputs becomes the same number there.
    """
    mask, old = inputs["completion_mask"], inputs.get("old_per_token_logps")
    counted = mask[rows].to(entropies.dtype)  # [rows, time]
    mean = (entropies.detach() * counted).sum() / counted.sum().clamp(min=1)
    if (entropy_old := inputs.get("entropy_old")) is not None:
        inputs["entropy_old"] = spread(entropy_old[rows], rows, mean.expand(mask.shape))
    elsewhere = torch.zeros_like(mask, dtype=logps.dtype) if old is None else old
    return spread(logps, rows, elsewhere), spread(entropies, rows, mean.expand(mask.shape))


def spread(values: Tensor, rows: Tensor, elsewhere: Tensor) -> Tensor:
    """``elsewhere`` without gradient, with ``values`` in the given rows. Shape [batch, ...]."""
    return elsewhere.detach().to(values.dtype).index_copy(0, rows, values)
