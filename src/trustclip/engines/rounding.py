"""Weights rounded to another type and back: what a sampler in that precision computes with."""

import torch
from torch import Tensor

#: Largest whole number of each symmetric integer type.
LARGEST = {"int8": 127, "int4": 7}


def round_trip(weight: Tensor, dtype: str) -> Tensor:
    r"""A weight rounded to another type and back.

    ``"int8"`` is symmetric quantisation of each row, $q = \mathrm{round}(127\, w / \max|w|)$, of
    matrices, ``"int4"`` the same with 7 for 127; vectors (the scales of normalisation) stay as they
    are, as in common quantisers.

    Example:
      >>> round_trip(torch.tensor([[0.5, -1.0, 0.3001]]), "int8") * 127
      tensor([[  64., -127.,   38.]])
    """
    if dtype in LARGEST:
        if weight.dim() < 2:
            return weight
        scale = weight.abs().amax(dim=1, keepdim=True) / LARGEST[dtype]  # [rows, 1]
        scale = torch.where(scale == 0, 1.0, scale)
        return (weight / scale).round() * scale
    return weight.to(getattr(torch, dtype)).to(weight.dtype)
