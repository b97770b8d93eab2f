"""Tensors of a batch: their kinds and shapes, and sequences packed one after another."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_tensor(name: str, value: object, kind: str, shape: Sequence[int]) -> None:
    """Raise a ValueError unless a value is a tensor of a shape and a kind.

    The kind is ``"floating point"``, or a dtype such as ``"bool"`` or ``"int64"``.
    """
    if isinstance(value, Tensor) and value.shape == shape:
        floating = value.is_floating_point()
        if floating if kind == "floating point" else value.dtype == getattr(torch, kind):
            return
    raise ValueError(
        f"`{name}` must be a torch tensor, {kind} {list(shape)}, got {described(value)}."
    )


def described(value: object) -> str:
    """Type and shape of a value, as an error names them."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)}"


def places(lengths: Tensor, tokens: int) -> Tensor:
    """True where a padded position holds a token. Shape [batch, time].

    Args:
      lengths: tokens of each sequence; may be 0. Integers, shape [batch].
      tokens: their sum.

    Raises:
      ValueError: lengths that are no such tensor, or do not add up to ``tokens``.

    Example:
      >>> places(torch.tensor([2, 1]), tokens=3)
      tensor([[ True,  True],
              [ True, False]])
    """
    whole = isinstance(lengths, Tensor) and not lengths.is_floating_point()
    if not whole or lengths.dim() != 1 or lengths.dtype == torch.bool:
        raise ValueError(
            f"`lengths` must be a tensor of integers with one dimension, got {described(lengths)}."
        )
    sizes = lengths.tolist()  # read once: the only wait for a GPU
    if sum(sizes) != tokens or min(sizes, default=0) < 0:
        raise ValueError(
            f"`lengths` must be 0 or more and add up to the number of tokens, {tokens}, got "
            f"{sum(sizes)} of {len(sizes)} sequences, of which the shortest has "
            f"{min(sizes, default=0)}."
        )
    return torch.arange(max(sizes, default=0), device=lengths.device) < lengths[:, None]


def pad(name: str, x: Tensor, where: Tensor, tokens: int) -> Tensor:
    """``x`` [tokens, ...] as [batch, time, ...], 0 in the padding; or [batch], repeated along time.

    Raises:
      ValueError: another shape.

    Example:
      >>> pad("x", torch.tensor([0.5, 0.25, 0.75]), places(torch.tensor([2, 1]), 3), tokens=3)
      tensor([[0.5000, 0.2500],
              [0.7500, 0.0000]])
    """
    if isinstance(x, Tensor) and x.shape[:1] == (tokens,):
        padded = x.new_zeros(*where.shape, *x.shape[1:])
        padded[where.to(x.device)] = x
        return padded
    if isinstance(x, Tensor) and x.shape == where.shape[:1]:
        return torch.where(where.to(x.device), x[:, None], x.new_zeros(()))
    raise ValueError(
        f"`{name}` must be [{tokens}], one of each token, or [{len(where)}], one of each sequence; "
        f"got {described(x)}."
    )
