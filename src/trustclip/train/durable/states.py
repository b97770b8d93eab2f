"""Exact conversion of nested state to tensors and JSON and back, without pickles.

None, booleans, integers, floats, strings, lists and dictionaries with string keys are plain JSON.
Anything else, which JSON would blur, is tagged: ``{"$tuple": [...]}``, ``{"$dict": [[key,
value], ...]}``, ``{"$float": "nan"}``, and ``{"$tensor": name}``, ``{"$array": name}`` or
``{"$scalar": name}`` for numbers stored in the safetensors file beside it.
"""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trustclip.support.schemas import conform, read_json
from trustclip.train.durable.schemas import SHARED

Tensors = dict[str, Tensor]


def pack(state: Any, name: str = "state") -> tuple[Tensors, Any]:
    """Split nested state into named tensors and a JSON value, the arguments of `unpack`.

    Args:
      state: None, bool, int, float, str, tensors, NumPy arrays and numbers, in lists, tuples and
        dictionaries. A tensor that occurs twice is stored once.
      name: what to call it in errors and in the tensors' names.

    Example:
      >>> tensors, packed = pack({"step": 3, 0: (torch.ones(2), None)}, "optimizer")
      >>> packed
      {'$dict': [['step', 3], [0, {'$tuple': [{'$tensor': 'optimizer.0.0'}, None]}]]}
      >>> unpack(tensors, packed)
      {'step': 3, 0: (tensor([1., 1.]), None)}
    """
    packer = _Packer()
    packed = packer.pack(state, name)
    return packer.tensors, packed


class _Packer:
    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._alive: list[Tensor] = []  # so that no address is reused while it is a key

    def pack(self, value: Any, name: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind in (list, tuple):
            items = [self.pack(item, f"{name}.{i}") for i, item in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind is dict:
            return self._dictionary(value, name)
        if kind in (Tensor, torch.nn.Parameter) and value.layout is torch.strided:
            return self._tensor(value, name)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            # A copy of native byte order, without a base that might not be writable.
            array = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
            tag = "$array" if isinstance(value, np.ndarray) else "$scalar"
            return {tag: self._tensor(array, name)["$tensor"]}
        raise ValueError(
            f"cannot store {name}: {kind.__module__}.{kind.__qualname__} is neither a plain value, "
            "a dense tensor, an array of numbers, nor a list, tuple or dictionary of these."
        )

    def _dictionary(self, value: dict[Any, Any], name: str) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.pack(item, f"{name}.{key}") for key, item in value.items()}
        pairs = [
            [self.pack(key, f"{name}.key"), self.pack(item, f"{name}.{key}")]
            for key, item in value.items()
        ]
        return {"$dict": pairs}

    def _tensor(self, value: Tensor, name: str) -> dict[str, Any]:
        value = value.detach()
        same = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if same not in self._names or value.numel() == 0:
            while name in self.tensors:
                name += "'"  # keys 1 and "1" of one dictionary read the same
            self._names[same] = name
            self._alive.append(value)
            whole = value.untyped_storage().nbytes() == value.nbytes and value.is_contiguous()
            # A view would drag along, or share, the storage it looks into.
            self.tensors[name] = value if whole else value.contiguous().clone()
        tag: dict[str, Any] = {"$tensor": self._names[same]}
        if value.device.type != "cpu":
            tag["device"] = value.device.type
        return tag


def unpack(tensors: Tensors, packed: Any, device: Any = None) -> Any:
    """The nested state that `pack` split; a tensor that occurred twice is one again.

    Tensors that were not on the CPU go to the device, where one is given.
    """
    if isinstance(packed, list):
        return [unpack(tensors, item, device) for item in packed]
    if not isinstance(packed, dict):
        return packed
    tag = next((key for key in packed if key.startswith("$")), None)
    if tag is None:
        return {key: unpack(tensors, item, device) for key, item in packed.items()}
    value = packed[tag]
    if tag == "$tuple":
        return tuple(unpack(tensors, item, device) for item in value)
    if tag == "$dict":
        return {unpack(tensors, k, device): unpack(tensors, v, device) for k, v in value}
    if tag == "$float":
        return float(value)
    if tag not in ("$tensor", "$array", "$scalar") or value not in tensors:
        raise ValueError(f"cannot restore {packed!r}: unknown tag or missing tensor.")
    if "device" in packed and device is not None:
        tensors[value] = tensors[value].to(device)
    tensor = tensors[value]
    if tag == "$tensor":
        return tensor
    return tensor.numpy() if tag == "$array" else tensor.numpy()[()]


def load(folder: Path, name: str, device: Any = None) -> Any:
    """Read ``name.json`` and, if there are tensors, ``name.safetensors`` of a folder."""
    from safetensors.torch import load_file

    packed = read_json(folder / f"{name}.json")
    file = folder / f"{name}.safetensors"
    stored = load_file(file) if file.exists() else {}
    # Own, aligned memory: some kernels round differently on memory mapped from a file.
    own = {name: tensor.clone() for name, tensor in stored.items()}
    try:
        return unpack(own, packed, device)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{folder / name}.json holds no state: {error}.") from error


def shared(folder: Path) -> dict[str, Any]:
    """What all ranks share in a checkpoint, ``shared.json``."""
    content = load(folder, "shared")
    conform(content, SHARED, f"{folder}/shared.json")
    return content


def random_state() -> dict[str, Any]:
    """State of all random number generators of this process: Python, NumPy, Torch, its GPU."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore all random number generators of this process from a `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
