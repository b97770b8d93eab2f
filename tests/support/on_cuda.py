"""Tensors of a CPU that say they are on a GPU: the GPU's path, with numbers."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnCuda(TorchFunctionMode):
    """``is_cuda`` is true, and products whose sums are wider than their factors are made so."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is torch.addmm and (wide := kwargs.pop("out_dtype", None)) is not None:
            args = tuple(x.to(wide) for x in args)
        if func is torch.Tensor.backward:
            with self:  # a mode is off while it answers, and the backward pass needs it
                engine: Any = torch.autograd.Variable._execution_engine
                one = torch.ones_like(args[0])
                return engine.run_backward(
                    (args[0],),
                    (one,),
                    False,
                    False,
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        return func(*args, **kwargs)
