"""Weights and optimizer of DeepSpeed ZeRO, in the files of `trustclip.train.durable.shards`.

ZeRO cuts flat buffers, not tensors. Its public functions assemble one parameter at a time, which
one rank keeps; so any number of ranks, and FSDP2, can read what is stored, and nothing is a pickle.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trustclip.support.sharded import whole
from trustclip.train.durable import shards, weights
from trustclip.train.durable.ranks import Ranks
from trustclip.train.durable.saving import Content

#: Elements that are read at once on resume, on every rank.
_AT_ONCE = 1 << 26


class Zero:
    """One rank's view of a model that DeepSpeed trains: every rank holds a part of flat buffers."""

    def __init__(self, engine: Any, ranks: Ranks) -> None:
        import deepspeed.utils as tools  # type: ignore[import-not-found]

        self._tools, self._engine, self._ranks = tools, engine, ranks
        self._model: nn.Module = engine.module
        self._base = engine.optimizer.optimizer  # the optimizer inside of ZeRO's
        self._stage = engine.zero_optimization_stage()

    def _flat(self) -> list[tuple[list[Any], Tensor]]:
        """The parameters in each of ZeRO's buffers, and this rank's part of it."""
        optimizer = self._engine.optimizer
        names = _BUFFERS[self._stage == 3]
        return [*zip(*(getattr(optimizer, name) for name in names), strict=True)]

    def _link_states(self) -> None:
        """Link parameters to their states in all groups: DeepSpeed checks the first one only."""
        for parameters, flat in self._flat() if self._stage < 3 else ():
            if self._base.state.get(flat):
                link = self._tools.lazy_init_hp_params_optimizer_state
                link(parameters, flat, self._base.state)

    def _state(self, parameter: Any) -> dict[str, Any]:
        """The optimizer's state of the buffer that holds a parameter."""
        for parameters, flat in self._flat():
            if any(parameter is one for one in parameters):
                return self._base.state[flat]
        return {}

    def _common(self, parameter: Any) -> dict[str, Any]:
        """State that is the same for every element, such as the number of steps.

        ZeRO-3 counts one more for some buffers, from a step without gradients at the start.
        """
        state = self._state(parameter)
        return {key: v for key, v in state.items() if not isinstance(v, Tensor) or v.dim() == 0}

    @property
    def _keys(self) -> list[str]:
        state = next(iter(self._base.state.values()), {})
        return [key for key, v in state.items() if isinstance(v, Tensor) and v.dim() == 1]

    def put(self, content: Content) -> dict[str, Any]:
        """Add this rank's share of the parameters, each whole, with its state."""
        self._link_states()
        tensors: dict[str, Tensor] = {}
        states: dict[str, Any] = {}
        for number, (name, parameter) in enumerate(weights.stored(self._model).items()):
            mine = number % self._ranks.world == self._ranks.rank
            # On every rank, whoever stores it: assembling is a collective call.
            for key, value in self._assemble(name, parameter):
                if mine:
                    tensors[key] = value.detach().to("cpu", copy=True)
            if parameter.requires_grad and self._base.state:
                shape = {"dtype": "float32", "device": parameter.device.type, "shape": None}
                states[name] = dict.fromkeys(self._keys, shape)
                for key, value in self._common(parameter).items():
                    full = torch.as_tensor(value)
                    kind = str(full.dtype).removeprefix("torch.")
                    states[name][key] = {"dtype": kind, "device": "cpu", "shape": []}
                    if mine:
                        tensors[shards.of_state(name, key)] = full.detach().to("cpu", copy=True)
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._base.param_groups
        ]
        content.shards = tensors
        return {"described": {"groups": groups, "states": states}}

    def load_weights(self, folder: Path) -> None:
        """Do nothing: they are loaded with the optimizer, which steps from its own copy."""
        shards.refuse_whole(folder)

    def load_optimizer(self, folder: Path, stored: Mapping[str, Any]) -> None:
        """Restore weights and optimizer from the files, whichever ranks wrote them."""
        described = stored["described"]
        for group, own in zip(described["groups"], self._base.param_groups, strict=True):
            own.update(group)
        rows = next(iter(described["states"].values()), {})
        for _, flat in self._flat():
            state = self._base.state[flat]
            for key, row in rows.items():
                if key not in state:
                    kind = getattr(torch, row["dtype"])
                    like = torch.zeros_like(flat) if row["shape"] is None else torch.zeros(())
                    state[key] = like.to(kind)
        self._link_states()
        slots: dict[str, Tensor] = {}
        actions: list[Callable[[], None]] = []
        for name, parameter in weights.stored(self._model).items():
            rows = described["states"].get(name, {})
            slots |= (parts := self._slots(name, parameter, rows))
            actions.append(lambda p=parameter, n=name, t=parts: self._set(n, p, t))
            if sum(tensor.numel() for tensor in slots.values()) > _AT_ONCE:
                self._fill(folder, slots, actions)
        self._fill(folder, slots, actions)

    def _fill(self, folder: Path, slots: dict[str, Tensor], actions: list[Any]) -> None:
        shards.load(folder, slots)
        for action in actions:
            action()
        slots.clear()
        actions.clear()

    def _assemble(self, name: str, parameter: Any) -> Iterator[tuple[str, Tensor]]:
        full = None
        if parameter.requires_grad:
            full = self._tools.safe_get_full_fp32_param(parameter)
        if full is None:  # frozen, or a buffer
            full = whole(parameter)
        yield shards.of_weight(name), full.to(parameter.dtype)
        if parameter.requires_grad:
            if parameter.dtype != torch.float32:  # what the optimizer steps from
                yield shards.of_state(name, _MASTER), full
            for key in self._keys:
                state = self._tools.safe_get_full_optimizer_state(parameter, key)
                yield shards.of_state(name, key), state

    def _slots(self, name: str, parameter: Any, rows: Mapping[str, Any]) -> dict[str, Tensor]:
        shape = getattr(parameter, "ds_shape", parameter.shape)
        slots = {shards.of_weight(name): torch.zeros(shape, dtype=parameter.dtype)}
        if parameter.requires_grad and parameter.dtype != torch.float32:
            slots[shards.of_state(name, _MASTER)] = torch.zeros(shape)
        for key, row in rows.items():
            of_row = shape if row["shape"] is None else row["shape"]
            slots[shards.of_state(name, key)] = torch.zeros(
                of_row, dtype=getattr(torch, row["dtype"])
            )
        return slots

    def _set(self, name: str, parameter: Any, tensors: dict[str, Tensor]) -> None:
        weight = tensors[shards.of_weight(name)]
        with _gathered_for_writing(parameter) as first:
            if first:
                parameter.data.copy_(weight)
        if not parameter.requires_grad:
            return
        master = tensors.get(shards.of_state(name, _MASTER), weight)
        self._set_flat(parameter, master.to(parameter.device))
        for key in self._keys:
            if (state := tensors.get(shards.of_state(name, key))) is not None:
                self._set_flat(parameter, state.to(parameter.device), key)
        state = self._state(parameter)
        for key in self._common(parameter):
            value = tensors.get(shards.of_state(name, key))
            if value is not None:
                now = state[key]
                state[key] = value.to(now) if isinstance(now, Tensor) else value.item()

    def _set_flat(self, parameter: Any, value: Tensor, key: str | None = None) -> None:
        tools = self._tools
        if self._stage < 3:
            if key is None:
                tools.safe_set_full_fp32_param(parameter, value)
            else:
                tools.safe_set_full_optimizer_state(parameter, value, key)
            return
        # ZeRO-3's function for whole tensors ignores the padding at the end.
        size, rank = parameter.ds_tensor.ds_numel, torch.distributed.get_rank()
        flat = value.flatten()  # [elements]
        own = flat[size * rank : size * (rank + 1)]  # shorter, or empty, on the last ranks
        own = torch.nn.functional.pad(own, (0, size - own.numel()))  # [size]
        if key is None:
            tools.safe_set_local_fp32_param(parameter, own)
        else:
            tools.safe_set_local_optimizer_state(parameter, own, key)


#: Where ZeRO-1 and 2, and ZeRO-3, keep the parameters of their buffers, and the rank's parts.
_BUFFERS = (
    ("bit16_groups", "single_partition_of_fp32_groups"),
    ("fp16_groups", "fp32_partitioned_groups_flat"),
)

#: Name of the float32 weights of a model in lower precision.
_MASTER = "master"


@contextlib.contextmanager
def _gathered_for_writing(parameter: Any) -> Iterator[bool]:
    """Gather a parameter to be written; yields whether this rank writes it (ZeRO-3: the first)."""
    if not hasattr(parameter, "ds_id"):
        yield True
        return
    import deepspeed  # type: ignore[import-not-found]

    with torch.no_grad(), deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        yield torch.distributed.get_rank() == 0


def in_parts(model: nn.Module) -> bool:
    """Whether ranks hold parts of the weights (FSDP2, ZeRO-3)."""
    return shards.sharded(model) or any(hasattr(p, "ds_id") for p in model.parameters())


def gathered(model: nn.Module) -> dict[str, Tensor] | None:
    """All weights, in the first rank's CPU memory; None where every rank holds them whole.

    Every rank must call it; the others get an empty dictionary.
    """
    if not in_parts(model):
        return None
    return _on_first(weights.stored(model).items())


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
