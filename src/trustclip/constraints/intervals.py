r"""Ratio intervals implied by thresholds: the ratios $w$ with divergence $f(w)\le\delta$.

Two shapes of answer. Where the interval does not depend on the token it is a pair of floats,
computed once. Where it depends on $p$, the old probability of the token, it is a pair of tensors.
`log_*` functions return bounds of the log-ratio $x=\log w$ (what gates compare, exactly), `ratios`
makes of them bounds of the ratio $w$ (what people read). A bound belongs to the interval.
"""

import math
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, cast

import torch
from torch import Tensor

from trustclip.constraints import divergences
from trustclip.constraints.divergences import k3_series

Bounds = tuple[float, float]

#: Threshold in nats beyond which e to minus it is no digit of the bounds of `log_bernoulli_kl`.
_LARGE = 40.0
#: So many steps of Newton reach 12 digits of the log-ratio for every p from 1e-12 to 1 - 1e-12 and
#: every bound above -700, given float64.
_STEPS = 4
#: Change of a logit below which e^x - 1 is -1 in float64; exponentials that underflow are slow.
_FAR = -40.0
#: Largest |log-ratio| in which `log_js` seeks a bound; halvings of the logarithm of a bracket, at
#: most 53 wide: less than the spacing of float64.
_FURTHEST, _HALVINGS = 700.0, 60
#: Largest log-ratio with a ratio in float64.
_LARGEST = math.log(sys.float_info.max)


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


def _once(solve: Callable[[float], Bounds]) -> Callable[[float], Bounds]:
    """Bounds that take some steps to find, found once for each threshold."""
    found = lru_cache(solve)
    # torch.compile has no symbol for `fabs`: it takes the threshold for a number, and solves.
    return wraps(solve)(lambda delta: found(math.fabs(delta)))


@_once
def log_k3(delta: float) -> Bounds:
    r"""Log-ratio bounds of k3, $w - 1 - \log w \le \delta$ (Theorem 4.2 of ATR-GRPO).

    $l = -W_0(-e^{-1-\delta})$, $u = -W_{-1}(-e^{-1-\delta})$ with Lambert's $W$; on the boundary
    $\log w = w - 1 - \delta$. Solved in $\log w$, where no digit is lost however small the
    threshold: the distance from 0 is right to 1e-14, relatively, from 1e-14 nats to 700.

    Example:
      >>> [round(b, 12) for b in log_k3(0.07)]
      [-0.39902826175, 0.352216736276]
    """
    # k3 is convex in x = log w and both starts lie beyond their roots: with s = sqrt(2 delta),
    # -(s + delta) <= log l and u <= 1 + s + delta (Chatzigeorgiou, 2013).
    reach = math.sqrt(2 * delta) + delta
    return _newton(_k3_step, -reach, delta), _newton(_k3_step, math.log1p(reach), delta)


def _newton(step: Callable[[float, float], float], x: float, delta: float) -> float:
    """Newton's method from beyond the root of a convex function: monotone, to the last digit."""
    while abs(closer := x - step(x, delta)) < abs(x):
        x = closer
    return x


def _k3_step(x: float, delta: float) -> float:
    tensor = torch.tensor(x, dtype=torch.float64)
    k3_of_x = k3_series(tensor).item() if abs(x) < 1 else math.expm1(x) - x
    return (k3_of_x - delta) / math.expm1(x)


@_once
def log_is_k3(delta: float) -> Bounds:
    r"""Log-ratio bounds of $1 - w + w\log w \le \delta$; the lower one is $-\infty$ for δ ≥ 1.

    $\log w = 1 + W_k\big((\delta-1)/e\big)$, $k=-1$ below and $k=0$ above. Below δ = 1 that is k3
    once more, of the number $v = 1 - \log w$: $v - 1 - \log v = -\log(1 - \delta)$.

    Example:
      >>> [round(b, 12) for b in ratios(log_is_k3(0.07))]
      [0.649979351242, 1.396835667486]
    """
    if delta < 1:
        log_v, log_v_high = log_k3(-math.log1p(-delta))
        return -math.expm1(log_v_high), -math.expm1(log_v)

    # e^x (x - 1) = delta - 1 is convex from x = 1 on, and 1 + log1p(delta) beyond its root.
    def step(x: float, delta: float) -> float:
        return (x - 1 + (1 - delta) * math.exp(-x)) / x

    return -math.inf, _newton(step, 1 + math.log1p(delta), delta)


def log_chi2(delta: float) -> Bounds:
    r"""Log-ratio bounds of $(w - 1)^2 \le \delta$: $1 \pm \sqrt\delta$."""
    offset = math.sqrt(delta)
    return math.log1p(-offset) if offset < 1 else -math.inf, math.log1p(offset)


def log_hellinger(delta: float) -> Bounds:
    r"""Log-ratio bounds of $(\sqrt w - 1)^2 \le \delta$: $(1 \pm \sqrt\delta)^2$."""
    low, high = log_chi2(delta)
    return 2 * low, 2 * high


@_once
def log_js(delta: float) -> Bounds:
    """Log-ratio bounds of `trustclip.constraints.divergences.js`, by bisection.

    Their distances from 0 are right to 1e-12, relatively; no lower one from log(2) / 2 on.

    Example:
      >>> [round(math.exp(b), 12) for b in log_js(0.05)]
      [0.464964524688, 1.73505913571]
    """
    ends = torch.tensor([-_FURTHEST, _FURTHEST], dtype=torch.float64)
    # By shares of the way, in geometric means: tiny bounds keep as many digits as large ones.
    inside, outside = torch.full_like(ends, 1e-20), torch.ones_like(ends)
    for _ in range(_HALVINGS):
        middle = (inside * outside).sqrt()
        within = divergences.js(middle * ends) <= delta
        inside, outside = torch.where(within, middle, inside), torch.where(within, outside, middle)
    bounds = torch.where(divergences.js(ends) <= delta, math.inf * ends, inside * ends)
    return tuple(bounds.tolist())


def ratio(log_bound: float) -> float:
    """$e^b$ of a bound, infinite beyond all numbers.

    Example:
      >>> ratio(0.0), ratio(1414.2)
      (1.0, inf)
    """
    return math.exp(log_bound) if log_bound < _LARGEST else math.inf


def ratios(log_bounds: Bounds) -> Bounds:
    """Bounds of the ratio from those of its logarithm.

    Example:
      >>> [round(b, 12) for b in ratios(log_kl2(0.07))]
      [0.687862896894, 1.453778077747]
    """
    low, high = log_bounds
    return ratio(low), ratio(high)


def dynamic_clip(
    p_old: Tensor, epsilon_low: float, epsilon_high: float, ceiling: float
) -> tuple[Tensor, Tensor]:
    r"""Ratio bounds of DCPO's dynamic clip, $|(w-1)\,w|\,p \le \epsilon$ (Yang et al., 2025).

    $l = \tfrac12 + \tfrac12\sqrt{\max(1 - 4\epsilon_{low}/p, 0)}$ and
    $u = \min\big(\text{ceiling}, \tfrac12 + \tfrac12\sqrt{1 + 4\epsilon_{high}/p}\big)$.

    $p$ is the probability of the token under the old policy, in (0, 1]; the bounds have its shape.

    Example:
      >>> low, high = dynamic_clip(torch.tensor([0.1, 0.9], dtype=torch.float64), 0.16, 0.2, 10.0)
      >>> [round(b, 12) for b in (*low.tolist(), *high.tolist())]
      [0.5, 0.768741924943, 2.0, 1.187184270936]
    """
    low = 0.5 + 0.5 * (1 - 4 * epsilon_low / p_old).clamp(min=0).sqrt()
    high = 0.5 + 0.5 * (1 + 4 * epsilon_high / p_old).sqrt()
    return low, high.clamp(max=ceiling)


def log_bernoulli_kl(logp_old: Tensor, delta: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Log-ratio bounds of the two-outcome KL(old || new): TRGPPO's interval for one token.

    $-p\log w + (1-p)\log\frac{1-p}{1-pw} \le \delta$. No closed form. Let $s = \min(p, 1-p)$ and
    $x$ the change of that outcome's logit: the left side is $\log(1 - s + s e^x) - s x$, the
    cumulant generating function of a centred Bernoulli variable. It is convex in $x$, so Newton's
    method, from its second step on, descends on either root monotonically: no bracket, no
    safeguard, no loop that depends on the data. At a root $\log w = \pm(1-p)\,x - \delta$.

    Args:
      logp_old: $\log p$ of the token under the old policy, nats. Any shape; below -300 counts as
        -300.
      delta: threshold, nats; from 1e-8 to 700. Or a tensor of them, one for each token.

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
    per_token, threshold = isinstance(delta, Tensor), cast("Any", delta)
    # Beyond a large threshold, w at the low bound and 1 - p w at the high one are 0 to every digit.
    beyond = threshold > _LARGE
    far = ((rest * rest.log() - threshold) / p, -logp) if per_token or beyond else None
    if far is not None and not per_token:
        return far[0].to(logp_old.dtype), far[1].to(logp_old.dtype)
    if per_token:
        threshold = threshold.clamp(max=_LARGE)
    s = torch.minimum(p, rest)
    variance = (1 - s).mul_(s)
    # For small delta, x^2 = 2c; for small s, x = log c at the high root; both, smoothly:
    c = threshold / variance
    start = (2 * c).sqrt_().add_(c).log1p_()
    x = torch.stack((start.neg(), start))  # [2, ...]: the low and the high root
    # One allocation for all steps: the system gives fresh pages of this size away slowly.
    growth, partition, value = x.new_empty(3, *x.shape)
    for step in range(_STEPS):
        # log1p and expm1 cost three times log and exp, and only the last step's digits stay.
        last = step == _STEPS - 1
        torch.clamp(x, min=_FAR, out=growth)
        growth.expm1_() if last else growth.exp_().sub_(1)
        torch.mul(growth, s, out=value)
        torch.add(value, 1, out=partition)
        value.log1p_() if last else torch.log(partition, out=value)
        value.sub_(threshold).addcmul_(s, x, value=-1)
        x.addcdiv_(value.mul_(partition), growth.mul_(variance), value=-1)
    if logp_old.dtype == torch.float64:
        # The token is the rarer outcome, or all others are: then only the partition changes for it.
        log_ratio = torch.where(p < 0.5, x, 0.0) - torch.log1p(s * torch.expm1(x))
    else:
        # At a root the logarithm of the partition is s x + delta: cheap, and right to 1e-16 nats.
        log_ratio = x.mul_(rest.copysign_(0.5 - p)).sub_(threshold)
    low, high = torch.minimum(*log_ratio), torch.maximum(*log_ratio)
    if far is not None:
        low, high = (torch.where(beyond, f, n) for f, n in zip(far, (low, high), strict=True))
    return low.to(logp_old.dtype), high.to(logp_old.dtype)
