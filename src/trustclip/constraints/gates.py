r"""Gates: the effect of an unsatisfied constraint on the token's gradient.

Every gate is written in the mask form. A kept token carries the objective $wA$, a gated one a
detached value, so the gradient of the objective in $\log\pi_\theta$ is $wA$ or 0, ``kept`` says
which, and the branch that is not taken cannot make a NaN.

The papers write the minimum of two branches. Where the branches are equal, ``torch.min`` passes on
half of each one's gradient. PPO loses nothing by that: at ratio 1 its second branch,
``w.clamp(l, u) * A``, has the gradient of the first. A constraint that fails at ratio 1, as one on
the exact KL can, loses half: its second branch is a constant there.

>>> w = torch.ones(1, requires_grad=True)
>>> seconds = w.clamp(0.8, 1.2), torch.ones(1)
>>> [torch.autograd.grad(torch.min(w, second), w)[0].item() for second in seconds]
[1.0, 0.5]

No gate closes on a token whose log-ratio is NaN: it is kept, and its gradient is NaN, so that a
training loop can see it (see `TokenBatch`).
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.levels import Level, log_ratio_at
from trustclip.constraints.masked import safe_exp, zero_masked
from trustclip.support.names import unknown

Side = Literal["outward", "strict"]


def moves_outward(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """True where a step up the objective moves the ratio further from 1. Shape [batch, time].

    That is where $(w-1)A > 0$: the tokens whose gradient the ``min`` of PPO can cut.
    """
    return log_ratio * advantages.sign() > 0


def keeps_gradient(satisfied: Tensor, log_ratio: Tensor, advantages: Tensor, side: Side) -> Tensor:
    """Which tokens keep their gradient (the paper's operator, in both of its readings).

    Args:
      satisfied: True where the constraint holds. Shape [batch, time].
      log_ratio: log-ratio the constraint was measured on, nats. Shape [batch, time].
      advantages: advantage of the token. Shape [batch, time].
      side: ``"outward"`` cuts an unsatisfied token only where its gradient would move the ratio
        further from 1 (the paper's main text and PPO, through their ``min``); ``"strict"`` cuts
        every unsatisfied token (the paper's appendix, without the ``min``); no other is allowed.

    Returns:
      bool. Shape [batch, time].

    Example:
      >>> x, a = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, -1.0]])
      >>> unsatisfied = torch.zeros(1, 2, dtype=torch.bool)
      >>> [keeps_gradient(unsatisfied, x, a, side) for side in ("outward", "strict")]
      [tensor([[False,  True]]), tensor([[False, False]])]
    """
    if side not in get_args(Side):
        raise ValueError(unknown("side", side, get_args(Side)))
    return satisfied if side == "strict" else satisfied | ~moves_outward(log_ratio, advantages)


def hard(
    batch: TokenBatch, kept: Tensor, log_ratio: Tensor | None = None, fill: Tensor | float = 1.0
) -> Surrogate:
    r"""Hard gate: $wA$ with its gradient where ``kept``, ``fill`` $\cdot A$ without one elsewhere.

    Args:
      batch: the tokens.
      kept: True where the gradient passes. Shape [batch, time].
      log_ratio: log-ratio whose exponential weighs the token; that of the token when None.
      fill: value the ratio takes in a gated token: 1 (the general operator, $w_{old}$) or a
        bound (the clip). Changes the loss value, never the gradient.

    Returns:
      The surrogate; ``kept`` is False where masked.

    Example:
      >>> batch = TokenBatch(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.5]]).log(),
      ...                    torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> hard(batch, kept=torch.tensor([[True, False]]), fill=1.2).objective
      tensor([[2.0000, 1.2000]])
    """
    x = batch.log_ratio if log_ratio is None else log_ratio  # [batch, time], as everything here
    kept = (kept | x.isnan()) & batch.mask  # a NaN is kept so that the gradient norm shows it
    # Double where: a gated ratio never enters the exponential, so it cannot make a NaN.
    ratio = torch.where(kept, safe_exp(zero_masked(x, kept)), fill)
    return Surrogate(zero_masked(ratio * batch.advantages, batch.mask), kept)


def interval(
    batch: TokenBatch,
    log_bounds: LogBounds,
    side: Side = "outward",
    level: Level = "token",
    dropped: Tensor | None = None,
) -> Surrogate:
    r"""Hard gate of a ratio interval: $l \le w \le u$, both bounds inside.

    Args:
      batch: the tokens.
      log_bounds: $(\log l, \log u)$: floats, or tensors [batch, time]. The log-ratio is compared,
        not the ratio: exact, without overflow.
      side: see `keeps_gradient`.
      level: where the ratio is measured and taken from; see `trustclip.constraints.levels`.
      dropped: True where a second constraint cuts the token, whatever its ratio.

    Returns:
      The surrogate. In a gated token the ratio takes the value of the nearest bound.

    Example:
      >>> batch = TokenBatch(torch.tensor([[0.5, 0.3]]).log(), torch.tensor([[0.25, 0.25]]).log(),
      ...                    torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))
      >>> interval(batch, (-0.25, 0.25)).kept
      tensor([[False,  True]])
    """
    x = log_ratio_at(level, batch.log_ratio, batch.mask)
    low, high = (_like(x, bound) for bound in log_bounds)  # scalar or [batch, time]
    kept = keeps_gradient((low <= x) & (x <= high), x, batch.advantages, side)
    if dropped is not None:
        kept = kept & ~dropped
    return hard(batch, kept, log_ratio=x, fill=_nearest(x, low, high))


def above_ceiling(batch: TokenBatch, ceiling: float | None) -> Tensor | None:
    """Tokens of negative advantage whose ratio exceeds a dual clip's ceiling; None without one."""
    if ceiling is None:
        return None
    return (batch.advantages < 0) & (batch.log_ratio > math.log(ceiling))


def by_sign(batch: TokenBatch, positive: LogBounds, negative: LogBounds) -> Surrogate:
    r"""Hard gate with one ratio interval for A > 0 and another for A < 0: a bound per quadrant.

    Every other gate of an interval is one of these: PPO's cuts where $A > 0$ and $w > u$, or
    $A < 0$ and $w < l$, which is ``positive`` $(0, u]$ and ``negative`` $[l, \infty)$.

    Args:
      batch: the tokens.
      positive: log-ratio bounds where A > 0; infinite ones never cut.
      negative: log-ratio bounds where A < 0.

    Returns:
      The surrogate. In a gated token the ratio takes the value of the nearest bound.

    Example:
      >>> batch = TokenBatch(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.25]]).log(),
      ...                    torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool))
      >>> by_sign(batch, (-math.inf, 0.2), (-0.2, math.log(3))).kept
      tensor([[False,  True]])
    """
    x, a = batch.log_ratio, batch.advantages
    # The bounds of each token's own sign, [batch, time]; with A = 0 there are none.
    low, high = (
        torch.where(a > 0, _like(x, p), torch.where(a < 0, _like(x, n), _like(x, free)))
        for p, n, free in zip(positive, negative, (-math.inf, math.inf), strict=True)
    )
    kept = (low <= x) & (x <= high)
    return hard(batch, kept, log_ratio=x, fill=_nearest(x, low, high))


def _nearest(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Ratio moved into its interval, without gradient."""
    return safe_exp(torch.minimum(torch.maximum(x.detach(), low), high))


def _like(x: Tensor, bound: Tensor | float) -> Tensor:
    return torch.as_tensor(bound, dtype=x.dtype, device=x.device)


def score_function(batch: TokenBatch, weight: Tensor, kept: Tensor | None = None) -> Surrogate:
    r"""Score form: gradient $c A \nabla\log\pi_\theta$ with the weight $c$ taken as a constant.

    Args:
      batch: the tokens.
      weight: $c$; its own gradient is not followed. Shape [batch, time].
      kept: True where the gradient passes; everywhere when None. Shape [batch, time].

    Returns:
      The surrogate; the objective's value is $cA$ in kept and gated tokens alike.

    Example:
      >>> logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
      >>> batch = TokenBatch(logp, logp.detach(), torch.tensor([[3.0, 3.0]]),
      ...                    torch.ones(1, 2, dtype=torch.bool))
      >>> score_function(batch, torch.tensor([[0.5, 0.1]])).objective.sum().backward()
      >>> logp.grad
      tensor([[1.5000, 0.3000]])
    """
    broken = batch.mask & batch.logp.isnan()  # [batch, time]
    kept = batch.mask if kept is None else (kept & batch.mask) | broken
    # 0 in value; its gradient is that of log pi, the score.
    logp = zero_masked(batch.logp - batch.logp.detach(), kept)
    # A weight that the token's own numbers do not enter must not make its NaN a finite gradient.
    value = torch.where(broken, torch.nan, weight.detach()) * batch.advantages
    return Surrogate(zero_masked(value * (1 + logp), batch.mask), kept)


def rollback(batch: TokenBatch, kept: Tensor, slope: float) -> Surrogate:
    r"""Rollback gate (Truly PPO, Wang et al., 2020): a gated token is pulled back towards ratio 1.

    Objective $wA$ where kept, $-\alpha w A$ plus a constant elsewhere.

    Args:
      batch: the tokens.
      kept: True where the constraint lets the gradient pass. Shape [batch, time].
      slope: $\alpha \ge 0$, strength of the pull; 0 is the hard gate.

    Returns:
      The surrogate; ``kept`` is False where the token is rolled back.
    """
    x = batch.log_ratio
    ratio, kept = safe_exp(x), (kept | x.isnan()) & batch.mask
    # The constant (1 + alpha) w, detached, makes the two branches meet in value.
    back = -slope * ratio + (1 + slope) * ratio.detach()
    objective = torch.where(kept, ratio, back) * batch.advantages
    return Surrogate(zero_masked(objective, batch.mask), kept)


def soft(batch: TokenBatch, value: Tensor) -> Surrogate:
    """Soft gate: every token is kept, its objective is ``value`` times the advantage.

    Args:
      batch: the tokens.
      value: function of the ratio with gradient, in place of the ratio itself. Shape [batch, time].

    Returns:
      The surrogate; ``kept`` is the mask.
    """
    return Surrogate(zero_masked(value * batch.advantages, batch.mask), batch.mask)
