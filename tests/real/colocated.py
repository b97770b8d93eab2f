"""``trustclip`` with TRL's colocated vLLM, of a build for CPUs: python -m real.colocated run ...

Two things are missing there, and neither on a GPU. vLLM packs the weights of linear layers for its
CPU kernels and drops the originals, so that the first transfer of new weights fails: layers keep
theirs here. And TRL passes vLLM neither a precision nor eager mode: they come from
COLOCATED_DTYPE, and compilation, which takes minutes, is off. With COLOCATED_TRANSFERS weights are
sent so many times, and no more: what a broken transfer looks like.
"""

import os
import sys
from typing import Any

import torch
import trl.generation.vllm_generation as generation
import vllm.model_executor.layers.utils as layers  # pyright: ignore[reportMissingImports]

MADE: Any = vars(generation)["LLM"]


def keep(layer: Any, remove_weight: bool = False) -> None:
    """In place of packing the weights of a layer."""
    layer.cpu_linear = torch.nn.functional.linear


def engine(*args: Any, **options: Any) -> Any:
    """TRL's engine in eager mode, in a given precision."""
    dtype = os.environ.get("COLOCATED_DTYPE", "float32")
    return MADE(*args, **{**options, "enforce_eager": True, "dtype": dtype})


def send(self: Any) -> None:
    """TRL's transfer of weights, the first so many times."""
    if TRANSFERS:
        TRANSFERS.pop()
        SEND(self)


layers.dispatch_cpu_unquantized_gemm = keep
setattr(generation, "LLM", engine)  # noqa: B010
SEND = generation.VLLMGeneration.sync_weights
TRANSFERS = [None] * int(os.environ.get("COLOCATED_TRANSFERS", "0"))
if TRANSFERS:
    generation.VLLMGeneration.sync_weights = send

if __name__ == "__main__":
    from trustclip.cli.main import command

    sys.argv[0] = "trustclip"
    command()
