"""Aggregation: from per-token values to one loss.

The choice decides how much a long sequence weighs.
"""

from numbers import Real
from typing import Literal, get_args

from torch import Tensor

from trustclip.constraints.masked import masked_sum, zero_masked
from trustclip.support.names import unknown

Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo", "dapo"]


def aggregate(
    name: str,
    x: Tensor,
    mask: Tensor,
    max_length: int | None = None,
    total_tokens: int | Tensor | None = None,
) -> Tensor:
    r"""Aggregate ``x`` by the name of the rule, to a scalar; 0 where there is no token.

    * ``token_mean``: mean over the unmasked tokens, so that every token weighs the same;
    * ``sequence_mean``: mean over sequences of each one's token mean (GRPO, Shao et al., 2024), so
      that a token of a short sequence weighs more;
    * ``dr_grpo``: sum over tokens by a constant (Dr. GRPO, Liu et al., 2025),
      $\frac{1}{B L}\sum_{b,t} x$;
    * ``dapo``: sum over tokens by the tokens of the whole update (DAPO, Yu et al., 2025), which is
      the ``token_mean`` of the update when its micro-batches are added up.

    A sequence without an unmasked token counts in $B$, and in ``sequence_mean`` as one of mean 0,
    as in TRL; verl leaves it out.

    Args:
      name: of the rule.
      x: values. Shape [batch, time].
      mask: True where the token counts.
      max_length: $L$ of ``dr_grpo``, the longest completion allowed, tokens: the same for every
        batch of a run, or the effective learning rate changes with it.
      total_tokens: of ``dapo``, unmasked tokens over all micro-batches and ranks of the update;
        those of this batch when None.

    Raises:
      ValueError: the name is unknown, `dr_grpo` lacks its length, or a number is given that the
        rule does not read.

    Example:
      >>> import torch
      >>> x = torch.tensor([[1.0, 2.0], [6.0, 0.0]])
      >>> mask = torch.tensor([[True, True], [True, False]])
      >>> aggregate("token_mean", x, mask), aggregate("sequence_mean", x, mask)
      (tensor(3.), tensor(3.7500))
      >>> aggregate("dr_grpo", x, mask, max_length=4), aggregate("dapo", x, mask, total_tokens=6)
      (tensor(1.1250), tensor(1.5000))
    """
    # Each argument, and the one rule that reads it.
    for argument, rule, value in (
        ("max_length", "dr_grpo", max_length),
        ("total_tokens", "dapo", total_tokens),
    ):
        if value is not None and name != rule and name in get_args(Aggregation):
            raise ValueError(
                f"`{argument}` is for the aggregation {rule!r}, and {name!r} does not read it: "
                "leave it out."
            )
        scalar = isinstance(value, Tensor) and value.numel() == 1  # a GPU is not waited for
        if not (value is None or scalar or (isinstance(value, Real) and value >= 0)):
            raise ValueError(f"`{argument}` must be a number of tokens, got {value!r}.")
    sequences = max(x.shape[0], 1)
    match name:
        case "token_mean":
            return masked_sum(x, mask) / mask.sum().clamp(min=1)
        case "sequence_mean":
            means = zero_masked(x, mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)  # [batch]
            return means.sum() / sequences
        case "dr_grpo":
            if max_length is None or max_length < 1:
                raise ValueError(f"dr_grpo needs `max_length` >= 1 (tokens), got {max_length!r}.")
            return (masked_sum(x, mask) / (sequences * max_length)).reshape(())
        case "dapo":
            tokens = mask.sum() if total_tokens is None else total_tokens
            tokens = tokens.clamp(min=1) if isinstance(tokens, Tensor) else max(tokens, 1)
            return (masked_sum(x, mask) / tokens).reshape(())  # 0 / 1 where there is no token
    raise ValueError(unknown("aggregation", name, get_args(Aggregation)))
