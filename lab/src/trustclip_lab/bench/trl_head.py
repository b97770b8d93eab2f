"""The loss head of TRL, for comparison."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

#: Columns of a tile, as TRL's trainers set it.
_COLUMNS = 32768


def chunked_head() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """TRL's chunked head as a function of the signature of `trustclip.head.selected_logprobs`.

    Raises:
      ImportError: TRL is not installed.
    """
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    def logprobs(
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        outputs = ("log_probs", "entropy") if entropy else ("log_probs",)
        output: Any = ChunkedLogProbFunction.apply(
            hidden, weight, None, ids, temperature, _COLUMNS, None, 1.0, outputs
        )
        return output[0], output[1]

    return logprobs
