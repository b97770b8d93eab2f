"""Tensors that several ranks hold in parts: saved and read back by each rank.

`torch.distributed.checkpoint` plans who writes and who reads what; its storage for safetensors
files keeps pickles out. A rank holds its part as a `DTensor` (FSDP2, tensor parallelism), or a
tensor as a whole that all have alike.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_planned
from torch.distributed.checkpoint.state_dict_saver import save as save_planned
from torch.distributed.tensor import DTensor

from trustclip.train.durable.store import CheckpointError

#: Folder of the parts inside of a checkpoint.
SHARDS = "shards"


def of_weight(name: str) -> str:
    """Name of a weight in the files."""
    return f"model.{name}"


def of_state(name: str, key: str) -> str:
    """Name of a state that the optimizer keeps of a weight."""
    return f"optimizer.{name}.{key}"


def sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of the weights, as `DTensor`."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def save(folder: Path, tensors: Mapping[str, Tensor], group: Any = None) -> None:
    """Write every rank's parts into files of a folder; all ranks of the group call it."""
    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    try:
        save_planned(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _rank_error(error) from error


def load(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place from the files that `save` wrote."""
    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    try:
        load_planned(dict(tensors), storage_reader=reader)
    except CheckpointException as error:
        raise _rank_error(error) from error


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of this rank's parts in CPU memory, which later updates leave alone."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(False, False, False, False))
    try:
        return stager.stage(dict(tensors))  # type: ignore[return-value]
    finally:
        stager.close()


def named_tensors(
    weights: Mapping[str, Tensor], names: list[list[str]], optimizer: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of weights and optimizer by name, and the description that `make_room` takes."""
    tensors = {of_weight(name): tensor for name, tensor in weights.items()}
    description: dict[str, Any] = {"groups": [], "states": {}}
    for group, of_group in zip(optimizer.param_groups, names, strict=True):
        description["groups"].append({k: v for k, v in group.items() if k != "params"})
        for parameter, name in zip(group["params"], of_group, strict=True):
            state = optimizer.state.get(parameter, {})
            rows = {key: _describe(name, key, parameter, value) for key, value in state.items()}
            if rows:
                description["states"][name] = rows
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[of_state(name, key)] = value
    return tensors, description


def make_room(description: Mapping[str, Any], names: list[list[str]], optimizer: Any) -> Any:
    """Give an optimizer the settings of a description and empty states; returns these to fill."""
    tensors: dict[str, Tensor] = {}
    for group, own, of_group in zip(
        description["groups"], optimizer.param_groups, names, strict=True
    ):
        own.update(group)
        for parameter, name in zip(own["params"], of_group, strict=True):
            rows = description["states"].get(name)
            if rows is None:
                continue
            state = {key: _empty_state(parameter, row) for key, row in rows.items()}
            optimizer.state[parameter] = state
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[of_state(name, key)] = value
    return tensors


def _describe(name: str, key: str, parameter: Tensor, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return {"value": value}
    like = value.shape == parameter.shape
    if isinstance(value, DTensor) and not like:
        raise ValueError(
            f"cannot store the optimizer: its {key} of {name} is sharded and not of the "
            "parameter's shape; use an optimizer such as AdamW."
        )
    kind = str(value.dtype).removeprefix("torch.")
    return {"dtype": kind, "device": value.device.type, "shape": None if like else [*value.shape]}


def _empty_state(parameter: Tensor, row: Mapping[str, Any]) -> Any:
    if "value" in row:
        return row["value"]
    dtype = getattr(torch, row["dtype"])
    if row["shape"] is None:
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    on_cpu = row["device"] == "cpu"
    return torch.zeros(row["shape"], dtype=dtype, device="cpu" if on_cpu else parameter.device)


def _rank_error(error: CheckpointException) -> OSError:
    """An error that names the rank which failed: a `CheckpointError`, or of the system."""
    rank, (cause, _) = min(error.failures.items())
    if code := getattr(cause, "errno", None):
        return OSError(code, f"rank {rank}: {getattr(cause, 'strerror', cause)}")
    return CheckpointError(f"rank {rank}: {cause}")
