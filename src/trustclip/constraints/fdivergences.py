r"""f-divergences: convex functions of the ratio as divergences, with their bounds.

For a convex $f$ with $f(1) = 0$ and the ratio $w_v = \pi_\theta(v)/\pi_{old}(v)$,

$D_f = \mathbb{E}_{v\sim\pi_{old}} f(w_v) = \sum_v \pi_{old}(v)\, f(w_v)$.

The mean is always over the old policy, which sampled the tokens, so $f(t) = -\log t$ gives
KL(old || new) and $f(t) = t\log t$ gives KL(new || old). Adding $c\,(t-1)$ to $f$ changes no
divergence, only the token's estimate of it; everything here uses the member of that family with
$f'(1) = 0$, which is non-negative for every token (k3 is that member for $-\log t$).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from trustclip.constraints import divergences, intervals
from trustclip.constraints.masked import safe_exp

LogRatioFunction = Callable[[Tensor], Tensor]

#: Largest |log-ratio| in which a root is sought: e^700 is the end of float64.
_FURTHEST = 700.0
#: Largest log-probability in which Bernoulli divergences are computed: beyond it float64 has no
#: other outcome left to measure.
_SUREST = -1e-13
#: Least |log-ratio| in which a root is sought, and least share of the way to a bound.
_LEAST = 1e-20
#: Halvings of the logarithm of a bracket, at most 53 wide: less than the spacing of float64.
_HALVINGS = 60


@dataclass(frozen=True)
class Divergence:
    r"""One f-divergence: the token's estimate of it, and the bounds it implies.

    Args:
      token: $x \mapsto f(e^x) \ge 0$ of the log-ratio $x$ of each token, normalised
        ($f(1) = f'(1) = 0$): under samples of the old policy its mean is $D_f$.
      closed: $\delta\mapsto$ log-ratio bounds, where there is a closed form.

    Example:
      >>> old = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
      >>> new = torch.tensor([0.4, 0.35, 0.1, 0.15], dtype=torch.float64).log()
      >>> js = NAMED["js"]
      >>> js.token(new - old).round(decimals=4)
      tensor([0.0056, 0.0032, 0.0168, 0.2616], dtype=torch.float64)
      >>> round((old.exp() * js.token(new - old)).sum().item(), 6)  # the exact one
      0.019344
      >>> round(js.bernoulli(old, new)[0].item(), 6)
      0.005059
    """

    token: LogRatioFunction
    closed: Callable[[float], intervals.Bounds] | None = None

    def log_interval(self, delta: float) -> intervals.Bounds:
        r"""Log-ratio bounds of $f(w) \le \delta$, in closed form or by bisection.

        Returns:
          (low, high), their distances from 0 right to 1e-12, relatively, for ``delta`` from 1e-14
          to 700; infinite where $f$ never reaches ``delta`` on that side.

        Example:
          >>> [round(math.exp(b), 12) for b in NAMED["js"].log_interval(0.05)]
          [0.464964524688, 1.73505913571]
          >>> NAMED["js"].log_interval(0.35)[0]  # at ratio 0 it is log(2) / 2
          -inf
        """
        return _log_interval(self, delta)

    def bernoulli(self, logp_old: Tensor, logp: Tensor) -> Tensor:
        r"""Exact $D_f$ of "this token or any other": $p f(w) + (1-p)\,f((1-pw)/(1-p))$.

        The smallest $D_f$ of any two distributions with these probabilities of the token, whose
        logarithms are given, nats. float64, the shape of the arguments.
        """
        old = logp_old.double()
        return self._bernoulli(old, logp.double() - old)

    def _bernoulli(self, old: Tensor, x: Tensor) -> Tensor:
        """`bernoulli` of the log-ratio, which a difference of log-probabilities would round."""
        old = old.clamp(-_FURTHEST, _SUREST)
        x = torch.minimum(x.clamp(min=-_FURTHEST), _SUREST - old)
        # (1 - p w) / (1 - p): near 1 by its distance from 1, near 0 by its logarithm.
        change = torch.expm1(x) * old.exp() / torch.expm1(old)  # p (w - 1) / -(1 - p)
        small = change.abs() < 0.5
        near = torch.log1p(torch.where(small, change, 0.0))
        far = divergences.log1mexp(old + x) - divergences.log1mexp(old)
        rest = torch.where(small, near, far)
        return old.exp() * self.token(x) - torch.expm1(old) * self.token(rest)

    def log_bernoulli_interval(self, logp_old: Tensor, delta: float) -> tuple[Tensor, Tensor]:
        r"""Log-ratio bounds of `bernoulli` $\le\delta$, by bisection, for each token.

        Returns:
          (low, high) in float64, the shape of ``logp_old``; low is -inf and high $-\log p$ where
          even a probability of 0 or of 1 stays within ``delta``.

        Example:
          >>> logp = torch.tensor([0.01, 0.5], dtype=torch.float64).log()
          >>> low, high = NAMED["kl_new_old"].log_bernoulli_interval(logp, 0.05)
          >>> [round(b, 11) for b in (*low.exp().tolist(), *high.exp().tolist())]
          [0.0, 0.68643680327, 5.51142852626, 1.31356319673]
        """
        old = logp_old.double()
        low, high = (
            _furthest(lambda x: self._bernoulli(old, x), end, delta)
            for end in (torch.full_like(old, -_FURTHEST), -old)
        )
        return torch.where(low == -_FURTHEST, -math.inf, low), high


@lru_cache
def _log_interval(divergence: Divergence, delta: float) -> intervals.Bounds:
    if divergence.closed is not None:
        return divergence.closed(delta)
    ends = torch.tensor([-_FURTHEST, _FURTHEST], dtype=torch.float64)
    low, high = _furthest(divergence.token, ends, delta).tolist()
    return -math.inf if low == -_FURTHEST else low, math.inf if high == _FURTHEST else high


def _furthest(divergence: LogRatioFunction, end: Tensor, delta: float) -> Tensor:
    """Furthest log-ratio from 0 towards ``end`` that is within ``delta``; the end if all are."""
    # By shares of the way, in geometric means: tiny bounds keep as many digits as large ones.
    inside, outside = torch.full_like(end, _LEAST), torch.ones_like(end)
    for _ in range(_HALVINGS):
        middle = (inside * outside).sqrt()
        within = divergence(middle * end) <= delta
        inside, outside = torch.where(within, middle, inside), torch.where(within, outside, middle)
    return torch.where(divergence(end) <= delta, end, inside * end)


def _is_k3(x: Tensor) -> Tensor:
    # Below e^-80 it is 1 to every digit, and the product that computes it would lose them.
    return divergences.is_k3(x.clamp(min=-80))


def _js(x: Tensor) -> Tensor:
    r"""$\tfrac12(w\log\tfrac wm - \log m)$, $m = \tfrac{1+w}{2}$, as a sum of non-negatives."""
    near = x.abs() < 1
    h = torch.where(near, 0.5 * x, 0.0)
    # log m = h + log cosh h keeps its digits near ratio 1, where those of 1 + w are lost.
    log_m = torch.where(
        near,
        h + 0.5 * torch.log1p(torch.sinh(h).square()),
        torch.nn.functional.softplus(x, threshold=40) - math.log(2),
    )
    return 0.5 * safe_exp(log_m) * (_is_k3(-log_m) + _is_k3(x - log_m))


def _chi2_bounds(delta: float) -> intervals.Bounds:
    offset = math.sqrt(delta)
    return math.log1p(-offset) if offset < 1 else -math.inf, math.log1p(offset)


def _hellinger_bounds(delta: float) -> intervals.Bounds:
    low, high = _chi2_bounds(delta)
    return 2 * low, 2 * high


#: Divergences by name. The direction is always from the first to the second.
NAMED = {
    "kl_old_new": Divergence(divergences.k3, intervals.log_k3),
    "kl_new_old": Divergence(_is_k3, intervals.log_is_k3),
    "chi2": Divergence(divergences.chi2, _chi2_bounds),
    "hellinger": Divergence(divergences.hellinger, _hellinger_bounds),
    "js": Divergence(_js),
}
