"""A sampler that differs from the policy in training: a rounded, quantised or older copy of it."""

from typing import Literal

import torch
from torch import Tensor

from trustclip.support.checked import Whole, checked


@checked
class Sampler:
    """The policy that samples, as a copy of the one in training: rounded, quantised, or old.

    In production another program samples (vLLM, SGLang), in another precision and often with
    weights that are some updates old. These settings produce the same mismatch on purpose, of known
    size.
    """

    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4"] = "float32"
    """Precision of the copy's weights; int8 and int4 quantise each row of a matrix."""
    lag: Whole = 0
    """Age of the copy in generations; 0 is the policy in training."""


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
