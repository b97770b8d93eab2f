"""The output head as a tiled product: rows are tokens, columns are the vocabulary."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trustclip.constraints.masked import widen

#: Largest number of rows of a tile, by device. More rows read the weight less often.
_ROWS = {"cpu": 1024, "cuda": 2048}
#: Logits of a tile: 8 MiB of float32 on a CPU (near its caches), 64 MiB on a GPU.
TILE_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 24}


@dataclass(frozen=True)
class Head:
    r"""Logits $z = (W h + b)/T$ of hidden states, in float32 at least.

    Half-precision factors stay half precision on a GPU, whose products add in float32; a CPU gets
    float32 factors. The weight is converted tile by tile, never whole.

    Args:
      weight: $W$. Shape [V, H].
      bias: $b$, or None. Shape [V].
      temperature: $T$.
    """

    weight: Tensor
    bias: Tensor | None
    temperature: float
    #: Dtype of the factors of products; chosen here, since autocast is off in a backward pass.
    compute_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        if self.weight.dim() != 2:
            raise ValueError(
                f"`weight` must be [vocabulary, hidden], got shape {tuple(self.weight.shape)}."
            )
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(
                f"`bias` must be [{self.weight.shape[0]}], got shape {tuple(self.bias.shape)}."
            )
        if not self.temperature > 0:
            raise ValueError(f"`temperature` must be positive, got {self.temperature}.")
        dtype = self.weight.dtype if self.weight.is_cuda else self.dtype
        if self.weight.is_cuda and torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
        object.__setattr__(self, "compute_dtype", dtype)

    @property
    def vocabulary(self) -> int:
        return self.weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of logits and of every sum."""
        return widen(self.weight.new_empty(0)).dtype

    def operand(self, hidden: Tensor) -> Tensor:
        """Hidden states in the dtype of the products.

        Raises:
          ValueError: their width is not that of the weight.
        """
        if hidden.dim() != 2 or hidden.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"hidden states must be [tokens, {self.weight.shape[1]}], as the weight is "
                f"{tuple(self.weight.shape)}; got shape {tuple(hidden.shape)}."
            )
        return hidden.to(self.compute_dtype)

    def columns(self, rows: int) -> Iterator[slice]:
        """The vocabulary in tiles, for blocks of ``rows`` tokens."""
        width = max(256, TILE_LOGITS[self._device] // max(rows, 1))
        for start in range(0, self.vocabulary, width):
            yield slice(start, min(start + width, self.vocabulary))

    def blocks(self, tokens: int) -> Iterator[slice]:
        """The tokens in blocks of rows."""
        for start in range(0, tokens, _ROWS[self._device]):
            yield slice(start, min(start + _ROWS[self._device], tokens))

    def factor(self, columns: slice) -> Tensor:
        """One tile of the weight in the dtype of the products. Shape [columns, H]."""
        return self.weight[columns].to(self.compute_dtype)

    def logits(self, operand: Tensor, factor: Tensor, columns: slice, out: Tensor) -> Tensor:
        """Logits of one tile, in ``out``. Shape [rows, columns]."""
        if self.bias is not None:
            out.copy_(self.bias[columns])
        scale = 1 / self.temperature
        return add_product(out, operand, factor.T, 0 if self.bias is None else scale, scale)

    def logits_of(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Logits of a few tokens of each row, by gathering their weights. Shape [rows, K]."""
        gathered = self.weight[ids].to(self.dtype)  # [rows, K, H]
        z = torch.einsum("nh,nkh->nk", hidden.to(self.dtype), gathered)  # [rows, K]
        return (z if self.bias is None else z + self.bias[ids]) / self.temperature

    @property
    def _device(self) -> str:
        return "cuda" if self.weight.is_cuda else "cpu"


class Tile:
    """Memory reused for one tile after another.

    Args:
      head: the head that makes the tiles.
      tokens: number of rows of hidden states, in blocks or not.
      dtype: of the entries.
    """

    def __init__(self, head: Head, tokens: int, dtype: torch.dtype) -> None:
        rows = max((block.stop - block.start for block in head.blocks(tokens)), default=0)
        width = max((tile.stop - tile.start for tile in head.columns(rows)), default=0)
        self._memory = head.weight.new_empty(rows * width, dtype=dtype)

    def of(self, rows: int, columns: slice) -> Tensor:
        """An uninitialised, contiguous tile. Shape [rows, columns]."""
        width = columns.stop - columns.start
        return self._memory[: rows * width].view(rows, width)


def columns_of(ids: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Which tokens lie in a tile, and their columns there; other tokens get the nearest column.

    Returns:
      (inside, column): bool [rows], int64 [rows, 1].
    """
    local = ids - columns.start
    last = columns.stop - columns.start - 1
    return (local >= 0) & (local <= last), local.clamp(0, last)[:, None]


def add_product(out: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``out = beta out + alpha a b`` in place, summed in the precision of ``out``."""
    if a.dtype == out.dtype:
        return out.addmm_(a, b, beta=beta, alpha=alpha)
    return torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, alpha=alpha, out=out)
