"""Levels: whether a number is measured on the token, its prefix, its turn or its whole sequence."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from trustclip.constraints.masked import zero_masked
from trustclip.support.names import unknown

Level = Literal["token", "prefix", "turn", "sequence"]
Reduction = Literal["mean", "sum", "max"]


def reduce(level: Level, reduction: Reduction, x: Tensor, mask: Tensor) -> Tensor:
    """Mean, sum or maximum, at each token, over the tokens that the level covers there.

    Args:
      level: ``"token"`` (the number itself), ``"prefix"`` (the tokens up to and including this
        one), ``"turn"`` (the run of unmasked tokens it is in: what the policy wrote between two
        replies of a tool or an environment) or ``"sequence"`` (all tokens of the sequence).
      reduction: ``"mean"``, ``"sum"`` or ``"max"``.
      x: one number per token. Shape [batch, time].
      mask: True where the token counts.

    Returns:
      Shape [batch, time]; 0 where masked.

    Example:
      >>> x, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
      >>> reduce("prefix", "sum", x, mask), reduce("sequence", "max", x, mask)
      (tensor([[1., 4., 0.]]), tensor([[3., 3., 0.]]))
      >>> reduce("turn", "sum", torch.ones(1, 4), torch.tensor([[True, True, False, True]]))
      tensor([[2., 2., 0., 1.]])
    """
    if level == "token" or not x.numel():
        return zero_masked(x, mask)
    if level == "turn":
        return _of_turns(reduction, x, mask)
    if level not in get_args(Level):
        raise ValueError(unknown("level", level, get_args(Level)))
    so_far = level == "prefix"
    if reduction == "max":
        values = torch.where(mask, x, -torch.inf)  # [batch, time]
        # [batch, time] for a prefix, [batch, 1] for a sequence, here and below
        result = values.cummax(dim=1).values if so_far else values.amax(dim=1, keepdim=True)
    else:
        values = zero_masked(x, mask)
        result = values.cumsum(dim=1) if so_far else values.sum(dim=1, keepdim=True)
    if reduction == "mean":
        count = mask.cumsum(dim=1) if so_far else mask.sum(dim=1, keepdim=True)
        result = result / count.clamp(min=1)  # an empty prefix or sequence has mean 0
    return zero_masked(result.expand_as(x), mask)


def _of_turns(reduction: Reduction, x: Tensor, mask: Tensor) -> Tensor:
    turn = (mask & ~pad(mask, (1, -1))).cumsum(dim=1)  # of each token, from 1. [batch, time]
    operation, fill = ("amax", -torch.inf) if reduction == "max" else ("sum", 0.0)

    def over(values: Tensor) -> Tensor:
        turns = values.new_full((len(x), x.shape[1] + 1), fill)  # [batch, turns, 0 for no turn yet]
        filled = torch.where(mask, values, fill)
        return turns.scatter_reduce(1, turn, filled, operation).gather(1, turn)  # [batch, time]

    result = over(x)
    if reduction == "mean":
        result = result / over(torch.ones_like(x)).clamp(min=1)
    return zero_masked(result, mask)


def log_ratio_at(level: Level, log_ratio: Tensor, mask: Tensor) -> Tensor:
    r"""Log-ratio measured at ``level``: the mean over what it covers, in score form.

    Its exponential is the length-normalised ratio of the sequence (GSPO, Zheng et al., 2025),
    $s = \exp(\tfrac1T\sum_t x_t)$, of the turn (SORL, Li et al., 2025) or of the prefix, $s_t$. Its
    gradient is that of the token's own log-ratio, so
    $\nabla s A_t = s A_t \nabla\log\pi_\theta(y_t)$: a token that is gated, masked or weighed, by
    this constraint or one around it, is so alone. Followed through the mean of the sequence, $T$
    tokens would share the sum of their coefficients, a dropped one included: the same gradient only
    where all of them have one advantage and one weight. Followed through that of the prefix, the
    first would weigh $\sum_u 1/u \approx \log T$ at ratio 1 and the last one $1/T$.
    Nats; 0 where masked. Shape [batch, time].

    Example:
      >>> x, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
      >>> log_ratio_at("prefix", x, mask), log_ratio_at("sequence", x, mask)
      (tensor([[1., 2., 0.]]), tensor([[2., 2., 0.]]))
    """
    own = zero_masked(log_ratio, mask)  # [batch, time]
    if level == "token":
        return own
    # Value of the mean, gradient of the token's own log-ratio.
    return reduce(level, "mean", log_ratio.detach(), mask) + (own - own.detach())
