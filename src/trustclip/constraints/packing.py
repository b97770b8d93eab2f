"""Packed sequences: one after another without padding, as ``[tokens]`` and their lengths."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Conversion between ``[tokens]``, packed, and ``[batch, time]``, padded.

    Args:
      lengths: tokens of each sequence; may be 0. int64, shape [batch].
      tokens: their sum.

    Raises:
      ValueError: lengths that are no such tensor, or do not add up to ``tokens``.

    Example:
      >>> packing = Packing(torch.tensor([2, 1]), tokens=3)
      >>> padded = packing.pad("x", torch.tensor([0.5, 0.25, 0.75]))
      >>> padded, packing.pack(padded)
      (tensor([[0.5000, 0.2500],
              [0.7500, 0.0000]]), tensor([0.5000, 0.2500, 0.7500]))
    """

    lengths: Tensor
    tokens: int

    def __post_init__(self) -> None:
        _check_whole("lengths", self.lengths)
        sizes = self.lengths.tolist()  # read once: the only wait for a GPU
        if any(size < 0 for size in sizes):
            raise ValueError(f"`lengths` must not be negative, got {min(sizes)}.")
        if sum(sizes) != self.tokens:
            raise ValueError(
                f"`lengths` must add up to the number of tokens, {self.tokens}, got {sum(sizes)} "
                f"of {len(sizes)} sequences."
            )
        object.__setattr__(self, "_time", max(sizes, default=0))

    @classmethod
    def of(cls, tokens: int, lengths: Tensor | None, cumulative: Tensor | None) -> "Packing":
        """A packing by the lengths, or by the cumulative lengths, which start with 0.

        Raises:
          ValueError: none or both are given, or they do not fit the number of tokens.
        """
        if (lengths is None) == (cumulative is None):
            raise ValueError(
                "packed sequences need `lengths` [batch] or `cumulative` [batch + 1]: one of them."
            )
        if cumulative is None:
            assert lengths is not None
            return cls(lengths, tokens)
        _check_whole("cumulative", cumulative)
        ends = cumulative.tolist()
        if not ends or ends[0] != 0 or ends[-1] != tokens or sorted(ends) != ends:
            raise ValueError(
                f"`cumulative` must rise from 0 to the number of tokens, {tokens}, got {ends[:8]}"
                f"{' ...' if len(ends) > 8 else ''}, which ends with {ends[-1:] or 'nothing'}."
            )
        return cls(cumulative.diff(), tokens)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sequences, and tokens of the longest."""
        return len(self.lengths), self._time  # type: ignore[attr-defined]

    @property
    def mask(self) -> Tensor:
        """True where a padded position holds a token. Shape [batch, time]."""
        places = torch.arange(self.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]

    def pad(self, name: str, x: Tensor) -> Tensor:
        """``x`` [tokens] as [batch, time], 0 in the padding; or [batch], repeated along time.

        Raises:
          ValueError: another shape.
        """
        mask = self.mask.to(x.device)
        if x.shape == (self.tokens,):
            return x.new_zeros(self.shape).masked_scatter(mask, x)
        if x.shape == (len(self.lengths),):
            return torch.where(mask, x[:, None], x.new_zeros(()))
        raise ValueError(
            f"`{name}` must be [{self.tokens}], one of each token, or [{len(self.lengths)}], one "
            f"of each sequence; got shape {tuple(x.shape)}."
        )

    def pad_candidates(self, x: Tensor) -> Tensor:
        """``x`` [1, tokens, candidates] as [batch, time, candidates].

        Raises:
          ValueError: another shape.
        """
        if x.shape[:2] != (1, self.tokens):
            raise ValueError(
                f"packed `candidates` must be [1, {self.tokens}, candidates], got {list(x.shape)}."
            )
        mask = self.mask.to(x.device)[..., None].expand(*self.shape, x.shape[2])
        return x.new_zeros(mask.shape).masked_scatter(mask, x)

    def pack(self, x: Tensor) -> Tensor:
        """The values of the tokens, [batch, time] to [tokens]: the inverse of `pad`."""
        return x[self.mask.to(x.device)]


def _check_whole(name: str, x: object) -> None:
    if not isinstance(x, Tensor) or x.dim() != 1 or x.is_floating_point() or x.dtype == torch.bool:
        got = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"`{name}` must be a tensor of integers with one dimension, got {got}.")
