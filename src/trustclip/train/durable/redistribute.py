"""A generation in training, and sums not yet logged, spread over another number of ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Inputs of TRL that are padded on the left; the others have a token's place on the right.
_LEFT = ("prompt_ids", "prompt_mask")


def respread(
    buffered: Sequence[Sequence[Mapping[str, Any]] | None], rank: int, world: int, filler: int
) -> list[dict[str, Any]] | None:
    """The micro-batches of one rank of ``world``, of completions that other ranks sampled.

    Each pass holds the same completions as before, over all ranks, and so has the same gradient.
    ``buffered`` are TRL's micro-batches of every rank that sampled; ``filler`` pads ids.

    Raises:
      ValueError: an input that is no tensor with one row a completion.
    """
    if any(batches is None for batches in buffered):
        return None
    return [
        {name: _share([b[name] for b in batches], name, rank, world, filler) for name in batches[0]}
        for batches in zip(*buffered, strict=True)  # type: ignore[arg-type]
    ]


def _share(parts: Sequence[Any], name: str, rank: int, world: int, filler: int) -> Any:
    first = parts[0]
    if first is None or (isinstance(first, Tensor) and first.dim() == 0):
        return first
    if not isinstance(first, Tensor):
        raise ValueError(
            f"a generation with {name} cannot be spread over another number of ranks: continue "
            "with as many as before."
        )
    if first.dim() > 1:
        length, fill = max(part.shape[1] for part in parts), filler * name.endswith("_ids")
        parts = [_pad(part, length - part.shape[1], name in _LEFT, fill) for part in parts]
    rows = torch.cat(list(parts))
    size = len(rows) // world
    return rows[rank * size : (rank + 1) * size].clone()


def _pad(x: Tensor, missing: int, left: bool, fill: int) -> Tensor:
    """Pad the second axis. Shape [rows, time, ...]."""
    ends = (missing, 0) if left else (0, missing)
    return pad(x, [0, 0] * (x.dim() - 2) + [*ends], value=fill)


def summed(states: Sequence[Any], rank: int) -> Any:
    """The sums of all ranks on the first one, zeros on the others, in nested state.

    Example:
      >>> a, b = {"k3": (torch.tensor(1.0), None)}, {"k3": (torch.tensor(2.0), None)}
      >>> summed([a, b], 0), summed([a, b], 1)
      ({'k3': (tensor(3.), None)}, {'k3': (tensor(0.), None)})
    """
    first = next((state for state in states if state is not None), None)
    if isinstance(first, Tensor):
        total = sum(state for state in states if state is not None)
        return total if rank == 0 else torch.zeros_like(first)
    if isinstance(first, Mapping):
        return {name: summed([state[name] for state in states], rank) for name in first}
    if isinstance(first, tuple):
        return tuple(summed(items, rank) for items in zip(*states, strict=True))
    return first
