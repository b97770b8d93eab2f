r"""The ratio interval a threshold implies: for a divergence $f(w)\le\delta$, the $w$ it allows.

Two shapes of answer. Where the interval does not depend on the token it is a pair of floats,
computed once. Where it depends on $p$, the old probability of the token, it is a pair of tensors.
`log_*` functions return bounds of the log-ratio $x=\log w$ (what gates compare, exactly); the
functions of the plain name return bounds of the ratio $w$ (what people read). A bound belongs to
the interval.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Bounds = tuple[float, float]

#: Change of a logit below which e^x - 1 is -1 in float64; exponentials that underflow are slow.
_FAR = -40.0


def log_offsets(low: float, high: float) -> Bounds:
    r"""Log-ratio bounds of $1 - low \le w \le 1 + high$; no lower bound for ``low`` = 1.

    Args:
      low: offset below ratio 1, at most 1. (Tensors, for offsets that differ from token to token,
        give tensors, here and in `log_kl1` and `log_kl2`.)
      high: offset above ratio 1.

    Example:
      >>> [round(math.exp(b), 12) for b in log_offsets(0.2, 0.28)]
      [0.8, 1.28]
    """
    return _log(1 - low), _log(1 + high)


def _log(x: Any) -> Any:
    """Natural logarithm of a number or a tensor; -inf at 0."""
    if isinstance(x, Tensor):
        return x.log()
    return math.log(x) if x > 0 else -math.inf


def _sqrt(x: Any) -> Any:
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)


def log_kl1(delta: float) -> Bounds:
    r"""Log-ratio bounds of $|\log w| \le \delta$: $(-\delta, \delta)$."""
    return -delta, delta


def log_kl2(delta: float) -> Bounds:
    r"""Log-ratio bounds of k2, $\tfrac12\log^2 w \le \delta$: $\pm\sqrt{2\delta}$."""
    return -_sqrt(2 * delta), _sqrt(2 * delta)


@lru_cache
def log_k3(delta: float) -> Bounds:
    r"""Log-ratio bounds of k3, $w - 1 - \log w \le \delta$ (Theorem 4.2 of ATR-GRPO).

    $l = -W_0(-e^{-1-\delta})$, $u = -W_{-1}(-e^{-1-\delta})$ with Lambert's $W$; on the boundary
    $\log w = w - 1 - \delta$.

    Example:
      >>> [round(b, 12) for b in log_k3(0.07)]
      [-0.39902826175, 0.352216736276]
    """
    from scipy.special import lambertw

    argument = -math.exp(-1 - delta)
    low, high = (-float(lambertw(argument, branch).real) for branch in (0, -1))
    return _polish(low - 1 - delta, delta), _polish(high - 1 - delta, delta)


def _polish(x: float, delta: float) -> float:
    """One Newton step on expm1(x) - x = delta: Lambert's W loses digits near its branch point."""
    return x - (math.expm1(x) - x - delta) / math.expm1(x)


@lru_cache
def log_is_k3(delta: float) -> Bounds:
    r"""Log-ratio bounds of $1 - w + w\log w \le \delta$; the lower one is $-\infty$ for δ ≥ 1.

    $\log w = 1 + W_k\big((\delta-1)/e\big)$, $k=-1$ below and $k=0$ above.

    Example:
      >>> [round(b, 12) for b in is_k3(0.07)]
      [0.649979351242, 1.396835667486]
    """
    from scipy.special import lambertw

    argument = (delta - 1) / math.e
    high = _polish_is_k3(1 + float(lambertw(argument, 0).real), delta)
    if delta >= 1:
        return -math.inf, high
    return _polish_is_k3(1 + float(lambertw(argument, -1).real), delta), high


def _polish_is_k3(x: float, delta: float) -> float:
    """One Newton step on e^x k3(-x) = delta, whose slope is x e^x."""
    w = math.exp(x)
    return x - (w * (math.expm1(-x) + x) - delta) / (x * w)


def kl1(delta: float) -> Bounds:
    """Ratio bounds of `log_kl1`.

    Example:
      >>> [round(b, 12) for b in kl1(0.07)]
      [0.932393819906, 1.072508181254]
    """
    return _exp(log_kl1(delta))


def kl2(delta: float) -> Bounds:
    """Ratio bounds of `log_kl2`.

    Example:
      >>> [round(b, 12) for b in kl2(0.07)]
      [0.687862896894, 1.453778077747]
    """
    return _exp(log_kl2(delta))


def k3(delta: float) -> Bounds:
    """Ratio bounds of `log_k3`.

    Example:
      >>> [round(b, 12) for b in k3(0.07)]
      [0.67097173825, 1.422216736276]
    """
    return _exp(log_k3(delta))


def is_k3(delta: float) -> Bounds:
    """Ratio bounds of `log_is_k3`."""
    return _exp(log_is_k3(delta))


def _exp(bounds: Bounds) -> Bounds:
    low, high = bounds
    return math.exp(low), math.exp(high)


def dynamic_clip(
    p_old: Tensor, epsilon_low: float, epsilon_high: float, ceiling: float
) -> tuple[Tensor, Tensor]:
    r"""Ratio bounds of DCPO's dynamic clip, $|(w-1)\,w|\,p \le \epsilon$ (Yang et al., 2025).

    $l = \tfrac12 + \tfrac12\sqrt{\max(1 - 4\epsilon_{low}/p, 0)}$ and
    $u = \min\big(\text{ceiling}, \tfrac12 + \tfrac12\sqrt{1 + 4\epsilon_{high}/p}\big)$.

    Args:
      p_old: $p$, probability of the token under the old policy, in (0, 1]. Any shape.
      epsilon_low: threshold below ratio 1.
      epsilon_high: threshold above ratio 1.
      ceiling: largest upper bound.

    Returns:
      (low, high), tensors of the shape of ``p_old``.

    Example:
      >>> low, high = dynamic_clip(torch.tensor([0.1, 0.9], dtype=torch.float64), 0.16, 0.2, 10.0)
      >>> [round(b, 12) for b in (*low.tolist(), *high.tolist())]
      [0.5, 0.768741924943, 2.0, 1.187184270936]
    """
    low = 0.5 + 0.5 * (1 - 4 * epsilon_low / p_old).clamp(min=0).sqrt()
    high = 0.5 + 0.5 * (1 + 4 * epsilon_high / p_old).sqrt()
    return low, high.clamp(max=ceiling)


def log_bernoulli_kl(logp_old: Tensor, delta: float, steps: int = 4) -> tuple[Tensor, Tensor]:
    r"""Log-ratio bounds of the two-outcome KL(old || new): TRGPPO's interval for one token.

    $-p\log w + (1-p)\log\frac{1-p}{1-pw} \le \delta$. No closed form. Let $s = \min(p, 1-p)$ and
    $x$ the change of that outcome's logit: the left side is $\log(1 - s + s e^x) - s x$, the
    cumulant generating function of a centred Bernoulli variable. It is convex in $x$, so Newton's
    method, from its second step on, descends on either root monotonically: no bracket, no
    safeguard, no loop that depends on the data. At a root $\log w = \pm(1-p)\,x - \delta$.

    Args:
      logp_old: $\log p$ of the token under the old policy, nats. Any shape; below -300 counts as
        -300.
      delta: threshold, nats; from 1e-6 to 300.
      steps: Newton steps. 4 reach 1e-9 in the log-ratio for every p from 1e-12 to 1 - 1e-12.

    Returns:
      (low, high), tensors of the shape and dtype of ``logp_old``; solved in float64.

    Example:
      >>> low, high = log_bernoulli_kl(torch.tensor([0.5], dtype=torch.float64).log(), 0.07)
      >>> round(low.exp().item(), 12), round(high.exp().item(), 12)
      (0.63855600074, 1.36144399926)
    """
    # The odds of p = 1 are infinite; a probability this close to 1 has the same ratio bounds to
    # every digit that a float32 log-probability carries.
    logp = logp_old.double().clamp(min=-300.0, max=-1e-13)
    p, rest = logp.exp(), logp.expm1().neg_()
    s = torch.minimum(p, rest)
    variance = (1 - s).mul_(s)
    # For small delta, x^2 = 2c; for small s, x = log c at the high root; both, smoothly:
    c = delta / variance
    start = (2 * c).sqrt_().add_(c).log1p_()
    x = torch.stack((start.neg(), start))
    # One allocation for all steps: the system gives fresh pages of this size away slowly.
    growth, partition, value = x.new_empty(3, *x.shape)
    for step in range(steps):
        torch.clamp(x, min=_FAR, out=growth).exp_().sub_(1)
        torch.mul(growth, s, out=value)
        torch.add(value, 1, out=partition)
        # log1p costs three times what log does, and only the last step's digits stay.
        torch.log(partition, out=value) if step < steps - 1 else value.log1p_()
        value.sub_(delta).addcmul_(s, x, value=-1)
        x.addcdiv_(value.mul_(partition), growth.mul_(variance), value=-1)
    # The logit of the token itself is that of s, or its opposite where p > 1/2.
    log_ratio = x.mul_(rest.copysign_(0.5 - p)).sub_(delta)
    low, high = torch.minimum(*log_ratio), torch.maximum(*log_ratio)
    return low.to(logp_old.dtype), high.to(logp_old.dtype)


def bernoulli_kl(p_old: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Ratio bounds of `log_bernoulli_kl` for a token of old probability ``p_old``."""
    low, high = log_bernoulli_kl(p_old.log(), delta)
    return low.exp(), high.exp()
