"""Tensors that ranks hold in parts, made whole."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(parameter: Any) -> Tensor:
    """All of a parameter that FSDP2 or ZeRO-3 may have sharded. Every rank must call it."""
    if hasattr(parameter, "ds_id"):
        import deepspeed  # type: ignore[import-not-found]

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    values = parameter.detach()
    return values.full_tensor() if isinstance(values, DTensor) else values
