"""Aggregation: from per-token values to one loss.

The choice decides how much a long sequence weighs. All take ``[batch, time]`` values and a bool
mask and return a scalar.
"""

from typing import Literal, get_args

from torch import Tensor

from trustclip.constraints import masked
from trustclip.support.names import unknown

Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo", "dapo"]


def token_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the unmasked tokens of the batch: every token weighs the same.

    Example:
      >>> import torch
      >>> mask = torch.tensor([[True, True], [True, False]])
      >>> token_mean(torch.tensor([[1.0, 2.0], [6.0, 0.0]]), mask)
      tensor(3.)
    """
    return masked.masked_mean(x, mask)


def sequence_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over sequences of each one's token mean (GRPO, Shao et al., 2024).

    Every sequence weighs the same, so a token of a short one weighs more. A sequence without an
    unmasked token counts as one of mean 0, as in TRL; verl leaves it out of the denominator.

    Example:
      >>> import torch
      >>> mask = torch.tensor([[True, True], [True, False]])
      >>> sequence_mean(torch.tensor([[1.0, 2.0], [6.0, 0.0]]), mask)
      tensor(3.7500)
    """
    return masked.sequence_mean(x, mask).sum() / max(x.shape[0], 1)


def dr_grpo(x: Tensor, mask: Tensor, max_length: int) -> Tensor:
    r"""Sum over tokens by a constant (Dr. GRPO, Liu et al., 2025): $\frac{1}{B L}\sum_{b,t} x$.

    $B$ counts every sequence, also one without an unmasked token (as in TRL; verl leaves it out).

    Args:
      x: values. Shape [batch, time].
      mask: True where the token counts.
      max_length: $L$, the longest completion allowed, tokens: the same for every batch of a run,
        or the effective learning rate changes with it.

    Example:
      >>> import torch
      >>> mask = torch.tensor([[True, True], [True, False]])
      >>> dr_grpo(torch.tensor([[1.0, 2.0], [6.0, 0.0]]), mask, max_length=4)
      tensor(1.1250)
    """
    return masked.masked_sum(x, mask) / (max(x.shape[0], 1) * max_length)


def dapo(x: Tensor, mask: Tensor, total_tokens: int | Tensor) -> Tensor:
    r"""Sum over tokens by the tokens of the whole update (DAPO, Yu et al., 2025).

    Equals `token_mean` of the whole update when its micro-batches are added up.

    Args:
      x: values. Shape [batch, time].
      mask: True where the token counts.
      total_tokens: unmasked tokens over all micro-batches and ranks of the update.

    Example:
      >>> import torch
      >>> mask = torch.tensor([[True, True], [True, False]])
      >>> dapo(torch.tensor([[1.0, 2.0], [6.0, 0.0]]), mask, total_tokens=6)
      tensor(1.5000)
    """
    some = total_tokens.clamp(min=1) if isinstance(total_tokens, Tensor) else max(total_tokens, 1)
    return masked.masked_sum(x, mask) / some  # of no token the sum is 0


def aggregate(
    name: str,
    x: Tensor,
    mask: Tensor,
    max_length: int | None = None,
    total_tokens: int | Tensor | None = None,
) -> Tensor:
    """Aggregate ``x`` by the name of the rule; 0 where there is no token.

    Args:
      name: ``"token_mean"``, ``"sequence_mean"``, ``"dr_grpo"`` or ``"dapo"``.
      x: values. Shape [batch, time].
      mask: True where the token counts.
      max_length: for `dr_grpo`, tokens.
      total_tokens: for `dapo`; the tokens of this batch when None.

    Raises:
      ValueError: the name is unknown, `dr_grpo` misses its length, or the rule has no use for a
        number that is given.
    """
    _check_used(name, max_length=max_length, total_tokens=total_tokens)
    match name:
        case "token_mean":
            return token_mean(x, mask)
        case "sequence_mean":
            return sequence_mean(x, mask)
        case "dr_grpo":
            if max_length is None or max_length < 1:
                raise ValueError(f"dr_grpo needs `max_length` >= 1 (tokens), got {max_length!r}.")
            return dr_grpo(x, mask, max_length)
        case "dapo":
            return dapo(x, mask, mask.sum() if total_tokens is None else total_tokens)
    raise ValueError(unknown("aggregation", name, get_args(Aggregation)))


#: The rule that reads each number.
_READS = {"max_length": "dr_grpo", "total_tokens": "dapo"}


def _check_used(name: str, **given: object) -> None:
    for number, rule in _READS.items():
        if given[number] is not None and name != rule and name in get_args(Aggregation):
            raise ValueError(
                f"`{number}` is for the aggregation {rule!r}, and {name!r} does not read it: "
                "leave it out."
            )
