"""Completions that cannot move the policy: left out of the passes, kept in the normaliser."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trustclip.batch import TokenBatch

#: What of TRL's inputs belongs to rows in ways of its own, so that rows cannot be left out.
_TIED = ("pixel_values", "token_type_ids", "mm_token_type_ids", "image_sizes", "num_images")


@torch.no_grad()
def rows_that_matter(inputs: dict[str, Any]) -> Tensor | None:
    """Indices of the completions with an advantage on a token that counts, or None for all.

    At least one: every rank must take part in every forward and backward pass.

    Args:
      inputs: of TRL's loss.
    """
    if any(inputs.get(name) is not None for name in _TIED):
        return None
    advantages, mask = inputs["advantages"], inputs["completion_mask"].bool()
    if "tool_mask" in inputs:
        mask = mask & inputs["tool_mask"].bool()
    matters = _matters(advantages if advantages.dim() == 2 else advantages[:, None], mask)
    if matters.all():
        return None
    return matters.nonzero().squeeze(1) if matters.any() else torch.zeros_like(matters[:1]).long()


def widened(
    inputs: dict[str, Any], rows: Tensor, logps: Tensor, entropies: Tensor
) -> tuple[Tensor, Tensor]:
    """What was computed of some rows, for all: elsewhere the policy is taken to be the old one.

    The entropy there is the mean of the others, so that a mean over all tokens is theirs.

    Args:
      inputs: of TRL's loss.
      rows: those that were computed. Shape [rows].
      logps: Shape [rows, time].
      entropies: Shape [rows, time].

    Returns:
      Both for the whole batch.
    """
    mask, old = inputs["completion_mask"], inputs.get("old_per_token_logps")
    counted = mask[rows].to(entropies.dtype)
    mean = (entropies.detach() * counted).sum() / counted.sum().clamp(min=1)
    elsewhere = torch.zeros_like(mask, dtype=logps.dtype) if old is None else old
    return spread(logps, rows, elsewhere), spread(entropies, rows, mean.expand(mask.shape))


def only_what_matters(batch: TokenBatch) -> TokenBatch:
    """The batch with the tokens of all completions masked that cannot matter."""
    return replace(batch, mask=batch.mask & _matters(batch.advantages, batch.mask)[:, None])


def _matters(advantages: Tensor, mask: Tensor) -> Tensor:
    """Which completions have an advantage on a token that counts. Shape [batch]."""
    return (mask & (advantages != 0)).any(dim=1)


def spread(values: Tensor, rows: Tensor, elsewhere: Tensor) -> Tensor:
    """``elsewhere`` with ``values`` in some of its rows."""
    return elsewhere.detach().to(values.dtype).index_copy(0, rows, values)
