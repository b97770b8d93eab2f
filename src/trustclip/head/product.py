"""The output head as a tiled product: rows are tokens, columns are the vocabulary."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trustclip.constraints.masked import widen

#: Largest number of rows of a tile, by device. More rows read the weight less often.
_ROWS = {"cpu": 1024, "cuda": 4096}
#: Logits of a tile: 8 MiB of float32 on a CPU (near its caches), 128 MiB on a GPU.
TILE_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 25}
#: Rows and columns of tiles are multiples of these where there are as many: products of other sizes
#: take 2 % longer on a CPU, and on a GPU rows that start at any byte keep its matrix units idle.
_EVEN = {"cpu": (16, 64), "cuda": (128, 128)}


@dataclass(frozen=True)
class Head:
    r"""Logits $z = (W h + b)/T$ of hidden states, in float32 at least; soft-capped with a cap.

    With a cap $c$ it is $z = c\tanh(u/c)$ of that $u$. `Head.of` takes a model's own constants. A
    weight with rows that no token has counts them, as a model's own loss does; ``weight[:tokens]``
    (and ``bias[:tokens]``) leaves them out, and their gradient is 0.

    Half-precision factors stay half precision on a GPU, whose products add in float32. A CPU gets
    float32 factors, and its products round them where the weight or autocast is bfloat16. The
    weight is converted tile by tile, never whole.

    Args:
      weight: $W$. Shape [V, H].
      bias: $b$, or None. Shape [V].
      temperature: $T$.
      cap: $c$, or None.

    Raises:
      ValueError: shapes that do not fit, $T$ or $c$ not positive, a weight that is a DTensor.
    """

    weight: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0
    cap: float | None = None
    #: Dtype of the factors of products; fixed here, since autocast is off in a backward pass.
    compute_dtype: torch.dtype = field(init=False)
    #: Whether a CPU's products round float32 factors to bfloat16 and add in float32.
    rounds: bool = field(init=False)

    def __post_init__(self) -> None:
        # The module takes seconds to import, and a DTensor implies it.
        loaded = sys.modules.get("torch.distributed.tensor")
        if loaded is not None and isinstance(self.weight, loaded.DTensor):
            raise ValueError(
                "`weight` is a DTensor. Score inside of the module's forward pass, where FSDP2 has "
                "gathered it; under tensor parallelism give weight.full_tensor()."
            )
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
        if self.cap is not None and not self.cap > 0:
            raise ValueError(f"the cap of logits must be positive, got {self.cap}.")
        dtype = self.weight.dtype
        if torch.is_autocast_enabled(self._device):
            dtype = torch.get_autocast_dtype(self._device)
        rounds = (self._device, self.dtype, dtype) == ("cpu", torch.float32, torch.bfloat16)
        object.__setattr__(self, "compute_dtype", dtype if self.weight.is_cuda else self.dtype)
        object.__setattr__(self, "rounds", rounds)

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        temperature: float = 1.0,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> "Head":
        r"""The head of a model that changes its logits: $z = c\tanh(s(W h + b)/c)/T$.

        Args:
          weight: $W$. Shape [V, H].
          bias: $b$, within the cap. Shape [V].
          temperature: $T$, that of sampling.
          scale: $s$: Cohere's ``logit_scale``, one over Granite's ``logits_scaling``.
          softcap: $c$: Gemma's ``final_logit_softcapping``; None for $z = s(W h + b)/T$.

        Raises:
          ValueError: shapes that do not fit, a number that is out of range.

        Example:
          >>> from trustclip.head import Head, selected_logprobs
          >>> head = Head.of(torch.tensor([[40.0], [20.0]]), softcap=30.0)
          >>> logp, _ = selected_logprobs(torch.ones(1, 1), head, torch.tensor([1]))
          >>> z = 30 * torch.tanh(torch.tensor([40.0, 20.0]) / 30)
          >>> round(logp.item(), 5), round(z.log_softmax(0)[1].item(), 5)
          (-8.61854, -8.61854)
        """
        if not scale > 0:
            raise ValueError(f"`scale` must be positive, got {scale}.")
        cap = None if softcap is None else softcap / temperature
        return cls(weight, bias, temperature / scale, cap)

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: rows of the weight."""
        return self.weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of logits and of every sum."""
        return widen(self.weight.new_empty(0)).dtype

    def operand(self, hidden: Tensor) -> Tensor:
        """Hidden states in the dtype of the products, row by row.

        Raises:
          ValueError: their width is not that of the weight.
        """
        if hidden.dim() != 2 or hidden.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"hidden states must be [tokens, {self.weight.shape[1]}], as the weight is "
                f"{tuple(self.weight.shape)}; got shape {tuple(hidden.shape)}."
            )
        return hidden.to(self.compute_dtype).contiguous()

    def columns(self, rows: int) -> Iterator[slice]:
        """The vocabulary in tiles, for blocks of ``rows`` tokens."""
        even = _EVEN[self._device][1]
        width = max(256, TILE_LOGITS[self._device] // max(rows, 1) // even * even)
        for start in range(0, self.vocabulary, width):
            yield slice(start, min(start + width, self.vocabulary))

    def blocks(self, tokens: int) -> Iterator[slice]:
        """The tokens in blocks of rows."""
        rows = _ROWS[self._device]
        for start in range(0, tokens, rows):
            yield slice(start, min(start + rows, tokens))

    def factor(self, columns: slice) -> Tensor:
        """One tile of the weight in the dtype of the products. Shape [columns, H]."""
        return self.weight[columns].to(self.compute_dtype)

    def logits(self, operand: Tensor, factor: Tensor, columns: slice, out: Tensor) -> Tensor:
        """Logits of one tile, in ``out``. Shape [rows, columns]."""
        if self.bias is not None:
            # e^-1e30 is 0 as well, and 0 times -1e30 is 0, while 0 times infinity is NaN.
            out.copy_(self.bias[columns]).clamp_(min=-1e30)
        scale = 1 / self.temperature
        add_product(out, operand, factor.T, 0 if self.bias is None else scale, scale)
        return out if self.cap is None else out.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, logits: Tensor) -> Tensor | None:
        r"""Derivative of capped logits in the uncapped ones, $1 - (z/c)^2$; None without a cap."""
        return None if self.cap is None else 1 - (logits / self.cap).square_()

    def logits_of(self, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """Logits of a few tokens of each row, by gathering their weights. Shape [rows, K].

        Of all tokens, where ``ids`` is None, at one product. Shape [rows, vocabulary].
        """
        operand = hidden.to(self.dtype)
        if ids is None:
            bias = None if self.bias is None else self.bias.to(self.dtype)
            z = F.linear(operand, self.weight.to(self.dtype), bias) / self.temperature
        else:
            gathered = self.weight[ids].to(self.dtype)  # [rows, K, H]
            z = torch.einsum("nh,nkh->nk", operand, gathered)  # [rows, K]
            z = (z if self.bias is None else z + self.bias[ids]) / self.temperature
        return z if self.cap is None else (z / self.cap).tanh().mul(self.cap)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Where products of float32 are those of this head; see ``rounds``."""
        matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        before = matmul.fp32_precision
        matmul.fp32_precision = "bf16" if self.rounds else before
        try:
            yield
        finally:
            matmul.fp32_precision = before

    @property
    def _device(self) -> str:
        return "cuda" if self.weight.is_cuda else "cpu"


def as_head(weight: Tensor | Head, bias: Tensor | None = None, temperature: float = 1.0) -> Head:
    """The head of a weight; a `Head` is returned unchanged.

    Raises:
      ValueError: a head, and a bias or a temperature beside it; what `Head` raises.
    """
    if not isinstance(weight, Head):
        return Head(weight, bias, temperature)
    if bias is not None or temperature != 1:
        raise ValueError("a Head has its own bias and temperature: give them to Head.of.")
    return weight


class Tile:
    """Memory reused for one tile after another."""

    def __init__(self, head: Head, blocks: Iterable[slice], dtype: torch.dtype) -> None:
        sizes = {block.stop - block.start for block in blocks}
        # Fewer rows have wider tiles: the largest block need not have the largest tile.
        most = max((rows * next(head.columns(rows)).stop for rows in sizes), default=0)
        self._memory = head.weight.new_empty(most, dtype=dtype)

    def of(self, rows: int, columns: slice) -> Tensor:
        """An uninitialised, contiguous tile. Shape [rows, columns]."""
        width = columns.stop - columns.start
        return self._memory[: rows * width].view(rows, width)


def add_product(out: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``out = beta out + alpha a b`` in place, summed in the precision of ``out``."""
    if a.dtype == out.dtype:
        return out.addmm_(a, b, beta=beta, alpha=alpha)
    return torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, alpha=alpha, out=out)
