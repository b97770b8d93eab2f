"""Tensors on a CUDA device that is not there: shapes, dtypes and devices, and no numbers.

PyTorch's fake tensors follow every operation's rules and refuse one whose tensors are on two
devices. What a GPU has to be waited for (a number or a mask that Python reads) is noted and
answered as if all were well, so that the code goes on. `enter` is for a process of its own: it
gives a PyTorch that was built without CUDA a guard of that device, for good.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

#: What Python asks of a tensor, and the answer that it gets.
_ANSWERS: dict[Any, Any] = {
    Tensor.__bool__: False,
    Tensor.__int__: 0,
    Tensor.__float__: 0.0,
    Tensor.__index__: 0,
    Tensor.item: 0.0,
    Tensor.tolist: 0,
}

_CUDA, _PRIVATE = 1, 20  # device types in the order of c10


class FakeCuda(TorchFunctionMode):
    """Answers for the device; `waits` lists what it would have been waited for.

    Args:
      waits: in order: ``"int"``, ``"bool"``, ``"item"``, ``"nonzero"``, ``"mask"``, and
        ``"from host"`` for an index or a value that stands in the CPU's memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _ANSWERS and args[0].is_cuda:
            self.waits.append(func.__name__.strip("_"))
            answer = _ANSWERS[func]
            if func in (Tensor.item, Tensor.tolist):
                answer = 0.0 if args[0].is_floating_point() else 0
            for size in reversed(args[0].shape) if func is Tensor.tolist else ():
                answer = [answer] * size
            return answer
        if func in (Tensor.nonzero, torch.nonzero) and args[0].is_cuda:
            self.waits.append("nonzero")
            axes = torch.meshgrid(*self._axes(args[0]), indexing="ij")
            return torch.stack([axis.flatten() for axis in axes], dim=1)
        if func in (Tensor.bincount, torch.bincount) and args[0].is_cuda:
            self.waits.append("bincount")  # for the largest number
            return torch.empty(
                (kwargs or {})["minlength"], dtype=torch.int64, device=args[0].device
            )
        if func is torch.autograd.grad:  # its engine wants the device's streams
            wanted = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            return tuple(torch.empty_like(x) for x in wanted)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].is_cuda:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(x for part in parts for x in self._indices(part)), *args[2:])
        return func(*args, **(kwargs or {}))

    def _indices(self, part: Any) -> Sequence[Any]:
        """A part of an index; a mask counts as one that is true everywhere."""
        if not isinstance(part, Tensor):
            return [part]
        if not part.is_cuda:
            self.waits.append("from host")
        if part.dtype != torch.bool:
            return [part]
        self.waits.append("mask")
        return [axis.flatten() for axis in torch.meshgrid(*self._axes(part), indexing="ij")]

    def _axes(self, like: Tensor) -> list[Tensor]:
        return [torch.arange(n, device=like.device) for n in like.shape]


def enter() -> FakeCuda:
    """From here on ``device="cuda"`` makes fake tensors, in this process.

    Raises:
      OSError, AttributeError: this build of PyTorch has no table of guards where it is looked for.
    """
    if not torch.backends.cuda.is_built():
        # Indexing and copies of a CUDA tensor ask for a guard of its device. That of a device that
        # is written in Python does nothing; it serves.
        class Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined]
            def type_(self) -> Any:
                return torch._C._autograd.DeviceType.CUDA  # type: ignore[attr-defined]

        torch._C._acc.register_python_privateuseone_device_guard(Guard())  # type: ignore[attr-defined]
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        table = "_ZN3c104impl26device_guard_impl_registryE"
        guards = (ctypes.c_void_p * (_PRIVATE + 1)).in_dll(library, table)
        guards[_CUDA] = guards[_PRIVATE]
    # A fake tensor reads its numbers one by one, where a real one comes over in one piece.
    FakeTensor.tolist = Tensor.tolist
    FakeTensorMode().__enter__()
    mode = FakeCuda()
    mode.__enter__()
    return mode
