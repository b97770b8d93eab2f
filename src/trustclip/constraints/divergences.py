r"""Divergences: the distance of the new policy from the old one at each token, in nats.

Estimators take the log-ratio $x = \log w$, $w = \pi_\theta(y)/\pi_{old}(y)$, of a token sampled
from the old policy. Each is $f(w)$ of a generator $f$; its mean over $y\sim\pi_{old}$ is the
divergence that the first line of its docstring names. Every formula of the project that turns
log-probabilities into a divergence stands in this file and nowhere else.
"""

import math

import torch
from torch import Tensor

from trustclip.constraints.masked import MAX_LOG_RATIO, safe_exp, safe_expm1, within

#: Gap in nats beyond which `categorical_kl` adds the terms of the lesser token one by one.
_FAR = 20.0


def k1(log_ratio: Tensor) -> Tensor:
    r"""k1 (Schulman, 2020): $-\log w$, estimates KL(old || new) without bias; signed.

    Example:
      >>> k1(torch.tensor([0.5]))
      tensor([-0.5000])
    """
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    r"""k2 (Schulman, 2020): $\tfrac12 \log^2 w \ge 0$, either KL up to third order.

    Example:
      >>> k2(torch.tensor([0.5]))
      tensor([0.1250])
    """
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    r"""k3 (Schulman, 2020): $w - 1 - \log w \ge 0$, estimates KL(old || new) without bias.

    To every digit of its dtype: near ratio 1 by its series, because $e^x - 1$ and $x$ cancel there
    (their difference has no digit at $x = 10^{-7}$ in float32). Beyond $x = 40$ the ratio is that
    of 40, here and in the other divergences, so that all of them stay finite.

    Example:
      >>> round(k3(torch.tensor(2.0, dtype=torch.float64).log()).item(), 12)
      0.30685281944
      >>> f"{k3(torch.tensor(1e-12)).item():.4g}"
      '5e-25'
    """
    if within(log_ratio, 1):
        return k3_series(log_ratio)
    near = log_ratio.abs() <= 1
    series = k3_series(torch.where(near, log_ratio, 0.0))
    return torch.where(near, series, safe_expm1(log_ratio) - log_ratio)


def k3_series(log_ratio: Tensor) -> Tensor:
    """$e^x - 1 - x$ by its Taylor series, for $|x|$ up to 1.

    The first term left out is below 1e-9 of the sum in float32, and below 1e-19 in float64.
    """
    total = one = log_ratio.new_ones(())
    for n in range(12 if log_ratio.dtype == torch.float32 else 20, 2, -1):
        total = torch.addcmul(one, total, log_ratio, value=1 / n)
    return 0.5 * log_ratio * log_ratio * total


def is_k3(log_ratio: Tensor) -> Tensor:
    r"""Importance-weighted k3: $w\,(1/w - 1 + \log w) = 1 - w + w\log w \ge 0$.

    Estimates KL(new || old) without bias from samples of the old policy. Computed as w k3(-x) where
    w is not small, which keeps the digits near w = 1; it tends to 1 as w tends to 0.

    Example:
      >>> round(is_k3(torch.tensor(2.0, dtype=torch.float64).log()).item(), 12)
      0.38629436112
      >>> is_k3(torch.tensor([-1.0, -100.0, -torch.inf]))
      tensor([0.2642, 1.0000, 1.0000])
    """
    w, x = safe_exp(log_ratio), log_ratio.clamp(min=-MAX_LOG_RATIO)
    return torch.where(x < -1, 1 - w * (1 - x), w * k3(-x))


def k3_product(log_ratio: Tensor) -> Tensor:
    r"""k3 times the ratio: $w\,(w - 1 - \log w) \ge 0$; its mean is chi2 - KL(new || old).

    Not monotone on (0, 1): it rises to 0.1619 at w = 0.2032 and falls to 0 again at w = 0.

    Example:
      >>> round(k3_product(torch.tensor(2.0, dtype=torch.float64).log()).item(), 12)
      0.61370563888
    """
    return safe_exp(log_ratio) * k3(log_ratio)


def tv(log_ratio: Tensor) -> Tensor:
    r"""Total variation: $\tfrac12 |w - 1|$, at most that of a log-ratio of 40.

    Example:
      >>> round(tv(torch.tensor(1.5, dtype=torch.float64).log()).item(), 12)
      0.25
    """
    return 0.5 * safe_expm1(log_ratio).abs()


def chi2(log_ratio: Tensor) -> Tensor:
    r"""Pearson chi-squared(new || old): $(w - 1)^2$, at most that of a log-ratio of 40.

    Example:
      >>> round(chi2(torch.tensor(1.5, dtype=torch.float64).log()).item(), 12)
      0.25
    """
    return safe_expm1(log_ratio).square()


def hellinger(log_ratio: Tensor) -> Tensor:
    r"""Squared Hellinger distance, $(\sqrt w - 1)^2$, in the scale that bounds it by 2.

    Example:
      >>> round(hellinger(torch.tensor(2.25, dtype=torch.float64).log()).item(), 12)
      0.25
    """
    return safe_expm1(0.5 * log_ratio).square()


def js(log_ratio: Tensor) -> Tensor:
    r"""Jensen and Shannon's: $\tfrac12(w\log\tfrac wm - \log m)$ with $m = \tfrac{1+w}{2}$.

    As a sum of terms that are not negative; at most $\log 2$ on average.

    Example:
      >>> round(js(torch.tensor(2.0, dtype=torch.float64).log()).item(), 12)
      0.084949518398
    """
    near = log_ratio.abs() < 1
    h = torch.where(near, 0.5 * log_ratio, 0.0)
    # log m = h + log cosh h keeps its digits near ratio 1, where those of 1 + w are lost.
    log_m = torch.where(
        near,
        h + 0.5 * torch.log1p(torch.sinh(h).square()),
        torch.nn.functional.softplus(log_ratio, threshold=40) - math.log(2),
    )
    return 0.5 * safe_exp(log_m) * (is_k3(-log_m) + is_k3(log_ratio - log_m))


def log1mexp(logp: Tensor) -> Tensor:
    r"""$\log(1 - e^{\ell})$ for $\ell \le 0$ without cancellation at either end.

    Example:
      >>> round(log1mexp(torch.tensor(-1e-12, dtype=torch.float64)).item(), 6)
      -27.631021
    """
    near_one = logp > -0.6931471805599453
    # Double where: the branch not taken must see a harmless argument, or its gradient is NaN.
    high = torch.log(-torch.expm1(torch.where(near_one, logp, -1.0)))
    low = torch.log1p(-torch.exp(torch.where(near_one, -1.0, logp)))
    return torch.where(near_one, high, low)


def binary_kl_old_new(logp_old: Tensor, logp: Tensor) -> Tensor:
    r"""KL(old || new) of "this token or any other": $p\log\frac pq + (1-p)\log\frac{1-p}{1-q}$.

    A probability beyond $1 - \epsilon$ counts as that, $\epsilon$ = 1.2e-7 in float32: with $q$
    there the result is at most $(1-p)\log\frac{1-p}\epsilon$, where the same numbers in float64
    are up to 21 nats times $1-p$ above it. So a threshold may be kept in the one and not in the
    other, for tokens of such a $q$ alone.

    Args:
      logp_old: $\log p$ of the sampled token under the old policy, nats.
      logp: $\log q$ under the new policy, nats.

    Example:
      >>> old, new = torch.tensor([0.5, 0.4], dtype=torch.float64).log()
      >>> round(binary_kl_old_new(old, new).item(), 12)
      0.02041099726
    """
    rest_old = log1mexp(_below_one(logp_old))
    rest = log1mexp(_below_one(logp))
    return logp_old.exp() * (logp_old - logp) + rest_old.exp() * (rest_old - rest)


def binary_tv(logp_old: Tensor, logp: Tensor) -> Tensor:
    r"""Total variation of "this token or any other": $|q - p|$.

    Example:
      >>> old, new = torch.tensor([0.5, 0.4], dtype=torch.float64).log()
      >>> round(binary_tv(old, new).item(), 12)
      0.1
    """
    return (logp.exp() - logp_old.exp()).abs()


def log_binary_tv_bounds(logp_old: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    r"""Log-ratio bounds of `binary_tv` $|pw - p| \le \delta$: $1 \pm \delta/p$, within $[0, 1/p]$.

    Args:
      logp_old: $\log p$ of the token under the old policy, nats. Any shape.
      delta: threshold, a probability.

    Returns:
      (low, high), the shape of ``logp_old``.

    Example:
      >>> logp_old = torch.tensor([0.1, 0.5], dtype=torch.float64).log()
      >>> low, high = log_binary_tv_bounds(logp_old, 0.15)
      >>> [round(b, 12) for b in (*low.exp().tolist(), *high.exp().tolist())]
      [0.0, 0.7, 2.5, 1.3]
    """
    return _log_offsets(math.log(delta) - logp_old, logp_old)


def log_binary_chi2_bounds(logp_old: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    r"""Log-ratio bounds of the two-outcome chi-squared, $(pw-p)^2/(p(1-p)) \le \delta$.

    $1 \pm \sqrt{\delta(1-p)/p}$, within $[0, 1/p]$.

    Args:
      logp_old: $\log p$ of the token under the old policy, nats. Any shape.
      delta: threshold.

    Returns:
      (low, high), the shape of ``logp_old``.

    Example:
      >>> logp_old = torch.tensor([0.1, 0.5], dtype=torch.float64).log()
      >>> low, high = log_binary_chi2_bounds(logp_old, 0.05)
      >>> [round(b, 11) for b in (*low.exp().tolist(), *high.exp().tolist())]
      [0.32917960675, 0.77639320225, 1.67082039325, 1.22360679775]
    """
    log_odds = log1mexp(_below_one(logp_old)) - logp_old
    return _log_offsets(0.5 * (math.log(delta) + log_odds), logp_old)


def _log_offsets(log_offset: Tensor, logp_old: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of 1 - o and 1 + o from that of o, which may be huge, within [0, 1/p]."""
    reachable = log_offset < 0
    low = log1mexp(torch.where(reachable, log_offset, -1.0))
    high = torch.nn.functional.softplus(log_offset, threshold=40)
    return torch.where(reachable, low, -torch.inf), torch.minimum(high, -logp_old)


def with_rest(logp: Tensor, tokens: Tensor) -> Tensor:
    r"""A distribution over a few tokens and "any other": what top-K divergences compare.

    Args:
      logp: normalised log-probabilities, nats. Shape [..., vocabulary].
      tokens: int64, different tokens. Shape [..., K].

    Returns:
      Log-probabilities of the tokens and, last, of all others together. Shape [..., K + 1]. Two of
      them go into `categorical_kl` or `categorical_tv`.

    Example:
      >>> logp = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
      >>> with_rest(logp, torch.tensor([0, 3])).exp()
      tensor([0.5000, 0.0500, 0.4500], dtype=torch.float64)
    """
    selected = logp.gather(-1, tokens)  # [..., K]
    rest = log1mexp(_below_one(selected.logsumexp(dim=-1, keepdim=True)))  # [..., 1]
    return torch.cat([selected, rest], dim=-1)


def categorical_tv(logp_a: Tensor, logp_b: Tensor) -> Tensor:
    r"""Exact total variation of two distributions: $\tfrac12\sum_v |a_v - b_v|$.

    Args:
      logp_a: normalised log-probabilities, nats. Shape [..., vocabulary].
      logp_b: the same of the other distribution.

    Returns:
      Shape [...].

    Example:
      >>> a = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
      >>> b = torch.tensor([0.4, 0.35, 0.1, 0.15], dtype=torch.float64).log()
      >>> round(categorical_tv(a, b).item(), 12)
      0.15
    """
    return 0.5 * (logp_a.exp() - logp_b.exp()).abs().sum(dim=-1)


def categorical_kl(logp_a: Tensor, logp_b: Tensor) -> Tensor:
    r"""Exact KL(a || b) of two distributions: $\sum_v a_v\,(e^{-d_v} - 1 + d_v)$.

    $d_v = \log a_v - \log b_v$. Equal to $\sum_v a_v d_v$, but every term is non-negative, so
    nothing cancels: three more digits in float32 at a vocabulary of 150 thousand.

    Args:
      logp_a: normalised log-probabilities, nats. Shape [..., vocabulary].
      logp_b: the same of the other distribution.

    Returns:
      Nats. Shape [...].

    Example:
      >>> a = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
      >>> b = torch.tensor([0.4, 0.35, 0.1, 0.15], dtype=torch.float64).log()
      >>> round(categorical_kl(a, b).item(), 13)
      0.0712157234917
    """
    gap = logp_a - logp_b  # [..., vocabulary]
    a, b = logp_a.exp(), logp_b.exp()
    # Far below b nothing cancels in b - a + a d, and e^{-d} would overflow; at a = 0 only b is left
    # (also where both are 0 and the gap is NaN).
    far = torch.where(logp_a.isneginf(), b, b - a + a * gap)
    near = a * k3(-gap)
    return torch.where((gap > -_FAR) & ~logp_a.isneginf(), near, far).sum(dim=-1)


def _below_one(logp: Tensor) -> Tensor:
    """Keep 1 - p above the smallest step of the dtype: p = 1 exactly has no odds.

    A float32 log-probability of 0 says that 1 - p is below 1.2e-7, and no more.
    """
    return logp.clamp(max=-torch.finfo(logp.dtype).eps)
