"""The trained weights: saved as Transformers and PEFT do, restored exactly."""

import hashlib
import math
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trustclip.support.sharded import whole
from trustclip.train.durable.shards import local, sharded


def _adapter(model: nn.Module) -> str | None:
    """Name of the trained adapter; None for a model without one."""
    if not hasattr(model, "peft_config"):
        return None
    active = model.active_adapters
    if len(active) != 1:  # type: ignore[arg-type]
        raise ValueError(f"cannot store a model with several active adapters: {active}.")
    return active[0]  # type: ignore[index]


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of the model's (or adapter's) file, by name; tied ones are listed once."""
    adapter = _adapter(model)
    if adapter is None:
        state = model.state_dict()
    else:
        from peft import get_peft_model_state_dict

        # Otherwise PEFT asks the Hub whether the embedding was resized.
        state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    unique: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.shape) if tensor.numel() else name
        unique.setdefault(place, (name, tensor))
    pointers = {tensor.data_ptr() for tensor in state.values()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.data_ptr() not in pointers:
            raise ValueError(f"cannot store this model: {name} trains but is not in its file.")
    return dict(unique.values())


def stored(model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and buffers that a sharded checkpoint holds, by name.

    Of a model with an adapter, those that train; tied ones are listed once.
    """
    parameters = dict(model.named_parameters())
    if _adapter(model) is not None:
        return {name: p for name, p in parameters.items() if p.requires_grad}
    persistent = model.state_dict().keys()
    return parameters | {name: b for name, b in model.named_buffers() if name in persistent}


def files(model: Any) -> dict[str, dict[str, Tensor]]:
    """Name and content of the model's (or adapter's) safetensors file."""
    tensors = {name: tensor.detach() for name, tensor in trained(model).items()}
    return {_file(_adapter(model)): tensors}


def save_config(model: Any, folder: Path) -> None:
    """Write what `from_pretrained` needs beside the weights."""
    adapter = _adapter(model)
    if adapter is None:
        model.config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)
    else:
        config, base = model.peft_config[adapter], model.get_base_model()
        # Without a task, PEFT finds the class of the base model through this mapping.
        mapping = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
        config.save_pretrained(folder, auto_mapping_dict=None if config.task_type else mapping)


@torch.no_grad()
def load(model: nn.Module, folder: Path) -> None:
    """Load the weights of `files` into the model, in place, where they are of this model."""
    from safetensors.torch import load_file

    file = folder / _file(_adapter(model))
    if not file.exists():
        raise ValueError(
            f"{folder} has no {file.name}: the full model and an adapter are stored differently."
        )
    stored, own = load_file(file), trained(model)
    for name in sorted(stored.keys() ^ own.keys()):
        raise ValueError(f"{file} belongs to another model: {name} is in only one of them.")
    for name, tensor in own.items():
        was, now = ((*t.shape, t.dtype) for t in (stored[name], tensor))
        if was != now:
            raise ValueError(f"{file} belongs to another model: {name} is {was}, not {now}.")
    for name, tensor in own.items():
        tensor.copy_(stored[name])


def _file(adapter: str | None) -> str:
    return "model.safetensors" if adapter is None else "adapter_model.safetensors"


def nonfinite(model: nn.Module, optimizer: Any = None) -> str | None:
    """Name of the first trained weight, or optimizer state, with a NaN or infinite element.

    Of sharded ones, only this rank's parts are checked.

    Example:
      >>> layer = nn.Linear(2, 2)
      >>> nonfinite(layer)
      >>> layer.bias.data[0] = float("nan")
      >>> nonfinite(layer)
      'bias'
    """
    by_name = {name: local(p.detach()) for name, p in model.named_parameters() if p.requires_grad}
    if optimizer is not None:
        names = {id(p): name for name, p in model.named_parameters()}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    by_name[f"{key} of {names.get(id(parameter), 'a part')}"] = local(value)
    tensors = [tensor for tensor in by_name.values() if tensor.numel()]
    if not tensors:
        return None
    # One number is read back from the device, unless something is wrong.
    if torch.nn.utils.get_total_norm(tensors, norm_type=math.inf).isfinite():
        return None
    return next(name for name, tensor in by_name.items() if not tensor.isfinite().all())


def frozen(model: nn.Module) -> str:
    """Fingerprint of the frozen weights: names, types, shapes and a sample of the values.

    A checkpoint of an adapter is useless on another base model, and would load without an error.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            values = whole(parameter)
            flat = values.flatten()
            sample = flat[:: max(1, flat.numel() // 64)].contiguous().cpu()
            digest.update(f"{name} {parameter.dtype} {tuple(values.shape)}".encode())
            digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def gathered(model: nn.Module) -> dict[str, Tensor] | None:
    """All weights, in the first rank's CPU memory; None where every rank holds them whole.

    Every rank must call it; the others get an empty dictionary.
    """
    if not sharded(model):
        return None
    return _on_first(stored(model).items())


def _on_first(parameters: Iterable[tuple[str, Any]]) -> dict[str, Tensor]:
    """Whole tensors in the first rank's CPU memory; the other ranks get none."""
    tensors: dict[str, Tensor] = {}
    for name, part in parameters:
        tensor = whole(part)
        if torch.distributed.get_rank() == 0:
            tensors[name] = tensor.detach().cpu()
    return tensors


def assemble_adapter(model: Any) -> Any:
    """An adapted model of which ranks hold parts, on the first rank; None on the others.

    Every rank must call it.
    """
    from peft import get_peft_model

    if not (tensors := _on_first(model.named_parameters())):
        return None
    inner = model.get_base_model()
    base: Any = next(cls for cls in type(inner).__mro__ if not cls.__name__.startswith("FSDP"))
    with torch.device("meta"):
        plain = get_peft_model(base(deepcopy(inner.config)), deepcopy(model.peft_config["default"]))
    plain.load_state_dict(tensors, strict=False, assign=True)
    plain.get_base_model().tie_weights()
    return plain
