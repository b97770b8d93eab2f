"""What somebody has added to a model beside its weights: hooks, and forward passes of its own.

Such a model computes more than its weights say, or wants to be told of every pass. So no fast path
is taken where there is an addition: TRL's and Transformers' own code runs it, and as often.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as of_all_modules

#: Libraries and modules that wrap and shard a model without changing what it computes.
_WRAPPING = (
    "accelerate",
    "deepspeed",
    "kernels",
    "liger_kernel",
    "peft.mixed_model",
    "peft.peft_model",
    "peft.utils",
    "torch.distributed",
    "transformers.modeling_utils",
    "transformers.utils",
    "trl",
    "trustclip",
)


def addition(model: nn.Module) -> str | None:
    """The first addition to a model, as in "model.norm has a forward hook"; None if there is none.

    Example:
      >>> layer = nn.Linear(2, 2)
      >>> addition(layer)
      >>> handle = layer.register_forward_hook(print)
      >>> addition(layer)
      'the model has a forward hook'
    """
    if _any_added(of_all_modules._global_forward_hooks, of_all_modules._global_forward_pre_hooks):
        return "every module has a forward hook"
    for name, module in model.named_modules():
        if _any_added(module._forward_hooks, module._forward_pre_hooks):
            return f"{name or 'the model'} has a forward hook"
        if "forward" in vars(module) and not _wraps(vars(module)["forward"]):
            return f"{name or 'the model'} has a forward pass of its own"
    return None


def _any_added(*hooks: dict[int, Callable[..., Any]]) -> bool:
    return any(not _wraps(hook) for some in hooks for hook in some.values())


def _wraps(function: Any) -> bool:
    """Whether the code of a function stands in one of the wrapping libraries."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    # Not ``__module__``, which a decorator copies from what it wraps.
    home = getattr(function, "__globals__", {}).get("__name__") or type(function).__module__
    return any(home == name or home.startswith(f"{name}.") for name in _WRAPPING)
