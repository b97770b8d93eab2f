"""Choice of a softmax step's implementation: plain PyTorch, or its Triton kernel."""

import importlib.util
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor


@cache
def _kernels() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    from trustclip.head import kernels

    return kernels


def kernel_for(function: Any, tensor: Tensor) -> Any:
    """The Triton kernel of a function if it can run on the device of ``tensor``."""
    kernels = _kernels() if tensor.is_cuda else None
    return partial(_launch, getattr(kernels, function.__name__), tensor) if kernels else function


def _launch(kernel: Any, tensor: Tensor, *args: Any) -> None:
    # Triton launches on the current device and its stream, and memory may be another device's.
    with torch.cuda.device_of(tensor):
        kernel(*args)
