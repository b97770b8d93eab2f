"""Compile every Triton kernel as the head launches it, for GPUs that are not there.

For `test_gpu_kernels.py`, in a process of its own: ``compiled_kernels.py 80 90`` prints a line of
JSON with the registers and spills of each kernel, by name and compute capability.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from on_cuda import OnCuda
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from trustclip import head
from trustclip_lab.bench.gpu import kernels


class Absent(DriverBase):
    """The driver of a GPU that only compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    @classmethod
    def is_active(cls) -> Any:
        return True

    def get_current_target(self) -> Any:
        return self._target

    def get_active_torch_device(self) -> Any:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of spills, by the tool that Triton brings along."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True
        ).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return {"registers": numbers["REG"], "stack": numbers["STACK"], "local": numbers["LOCAL"]}


def main(capabilities: list[str]) -> None:
    found: dict[str, Any] = {}
    run = triton.runtime.JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel: Any = run(self, *args, grid=grid, warmup=True, **kwargs)
        found[f"{self.__name__} sm_{capability}"] = resources(kernel.asm["cubin"])
        return kernel

    triton.runtime.JITFunction.run = compiled  # type: ignore[method-assign]
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5000, (3,), generator=g)
    for capability in map(int, capabilities):
        driver.set_active(Absent(capability))
        for dtype in (torch.bfloat16, torch.float32):
            for trained in (False, True):
                hidden = torch.randn(3, 8, generator=g).to(dtype).requires_grad_()
                weight = torch.randn(5000, 8, generator=g).to(dtype).requires_grad_(trained)
                for of_entropy in (True, False):
                    with OnCuda(), kernels.in_head():
                        logp, entropy = head.selected_logprobs(hidden, weight, ids)
                        assert entropy is not None
                        (logp.sum() + (entropy.sum() if of_entropy else 0)).backward()
    every = [
        name for name in vars(kernels) if isinstance(getattr(kernels, name), triton.JITFunction)
    ]
    print(json.dumps({"kernels": every, "compiled": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
