r"""f-divergences: any convex function of the ratio as a divergence, with its bounds.

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
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import divergences, intervals
from trustclip.constraints.masked import safe_exp
from trustclip.support.imports import import_object
from trustclip.support.names import unknown

LogRatioFunction = Callable[[Tensor], Tensor]

#: Largest |log-ratio| in which a root is sought: e^700 is the end of float64.
_FURTHEST = 700.0
#: Largest log-probability in which Bernoulli divergences are computed: beyond it float64 has no
#: other outcome left to measure.
_SUREST = -1e-13
#: Least |log-ratio| in which a root is sought, and least share of the way to a bound.
_LEAST = 1e-20
#: Points in which a bracket is cut, and how often: the first pass leaves a tenth of the root, each
#: further one a 500th of that, and the last less than the spacing of float64.
_POINTS, _PASSES = 512, 7
#: Halvings of the logarithm of a bracket, at most 46 wide: 1e-16 at the end.
_HALVINGS = 60


@dataclass(frozen=True)
class Divergence:
    r"""One f-divergence: the token's estimate of it, its exact value, and the bounds it implies.

    Args:
      name: what errors and tables call it.
      token: $x \mapsto f(e^x) \ge 0$ of the log-ratio $x$ of each token, normalised
        ($f(1) = f'(1) = 0$): under samples of the old policy its mean is $D_f$.
      closed: $\delta\mapsto$ log-ratio bounds, where there is a closed form.

    Example:
      >>> old = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
      >>> new = torch.tensor([0.4, 0.35, 0.1, 0.15], dtype=torch.float64).log()
      >>> js = f_divergence("js")
      >>> js.token(new - old).round(decimals=4)
      tensor([0.0056, 0.0032, 0.0168, 0.2616], dtype=torch.float64)
      >>> round(js.categorical(old, new).item(), 6), round(js.bernoulli(old, new)[0].item(), 6)
      (0.019344, 0.005059)
    """

    name: str
    token: LogRatioFunction
    closed: Callable[[float], intervals.Bounds] | None = None

    def log_interval(self, delta: float) -> intervals.Bounds:
        r"""Log-ratio bounds of $f(w) \le \delta$, in closed form or by cutting a bracket.

        Returns:
          (low, high), their distances from 0 right to 1e-12, relatively, for ``delta`` from 1e-14
          to 700; infinite where $f$ never reaches ``delta`` on that side.

        Example:
          >>> [round(math.exp(b), 12) for b in f_divergence("js").log_interval(0.05)]
          [0.464964524688, 1.73505913571]
          >>> f_divergence("js").log_interval(0.35)[0]  # at ratio 0 it is log(2) / 2
          -inf
        """
        return _log_interval(self, delta)

    def categorical(self, logp_old: Tensor, logp: Tensor) -> Tensor:
        r"""Exact $D_f$ of two distributions, $\sum_v \pi_{old}(v) f(w_v)$.

        Of normalised log-probabilities [..., vocabulary], nats. Shape [...].

        Raises:
          ValueError: the new policy has a token that the old one can never sample.
        """
        if (logp_old.isneginf() & ~logp.isneginf()).any():
            raise ValueError("`logp_old` is -inf where `logp` is not: no ratio to take f of.")
        absent = logp_old.isneginf()
        term = logp_old.exp() * self.token(torch.where(absent, 0.0, logp - logp_old))
        return torch.where(absent, 0.0, term).sum(dim=-1)

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
          >>> low, high = f_divergence("kl_new_old").log_bernoulli_interval(logp, 0.05)
          >>> [round(b, 11) for b in (*low.exp().tolist(), *high.exp().tolist())]
          [0.0, 0.68643680327, 5.51142852626, 1.31356319673]
        """
        old = logp_old.double()
        ends = (torch.full_like(old, -_FURTHEST), -old)
        return tuple(  # type: ignore[return-value]
            self._edge(old, end, beyond, delta)
            for end, beyond in zip(ends, (torch.full_like(old, -math.inf), -old), strict=True)
        )

    def _edge(self, old: Tensor, end: Tensor, beyond: Tensor, delta: float) -> Tensor:
        """Furthest x from 0 towards ``end`` that is within ``delta``; ``beyond`` if all are."""
        # By shares of the way, in geometric means: tiny bounds keep as many digits as large ones.
        inside, outside = torch.full_like(end, _LEAST), torch.ones_like(end)
        for _ in range(_HALVINGS):
            middle = (inside * outside).sqrt()
            within = self._bernoulli(old, middle * end) <= delta
            inside, outside = (
                torch.where(within, middle, inside),
                torch.where(within, outside, middle),
            )
        return torch.where(self._bernoulli(old, end) <= delta, beyond, inside * end)


@lru_cache
def _log_interval(divergence: Divergence, delta: float) -> intervals.Bounds:
    if divergence.closed is not None:
        return divergence.closed(delta)
    return -_root(divergence, delta, -1.0), _root(divergence, delta, 1.0)


def _root(divergence: Divergence, delta: float, sign: float) -> float:
    """Largest |x| on one side of 0 where the generator is within ``delta``; inf if all are."""
    sizes = torch.logspace(math.log10(_LEAST), math.log10(_FURTHEST), _POINTS, dtype=torch.float64)
    inside = 0.0
    for step in range(_PASSES):
        leading = (divergence.token(sign * sizes) <= delta).cumprod(0)
        within = int(leading.sum())  # how many of the first
        if step == 0 and within == _POINTS:
            return math.inf
        place = min(max(within, 1), _POINTS - 1)
        inside, outside = sizes[place - 1].item(), sizes[place].item()
        sizes = torch.linspace(inside, outside, _POINTS, dtype=torch.float64)
    return inside


# Named -----------------------------------------------------------------------------------------


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


#: Divergences without a parameter, by name. The direction is always from the first to the second.
NAMED = {
    "kl_old_new": Divergence("kl_old_new", divergences.k3, intervals.log_k3),
    "kl_new_old": Divergence("kl_new_old", _is_k3, intervals.log_is_k3),
    "chi2": Divergence("chi2", divergences.chi2, _chi2_bounds),
    "hellinger": Divergence("hellinger", divergences.hellinger, _hellinger_bounds),
    "js": Divergence("js", _js),
}


@lru_cache
def alpha_divergence(alpha: float) -> Divergence:
    r"""Alpha-divergence (Cressie and Read, 1984), $\frac{t^a-1-a(t-1)}{a(a-1)}$, $a=\alpha$.

    $\alpha\to0$ is KL(old || new), $\alpha\to1$ KL(new || old), 2 half of $\chi^2$, 1/2 twice the
    squared Hellinger distance (`trustclip.constraints.divergences.hellinger`); all have
    $f''(1) = 1$.

    Example:
      >>> x = torch.tensor(2.0, dtype=torch.float64).log()
      >>> [round(alpha_divergence(a).token(x).item(), 6) for a in (0, 0.5, 1, 2)]
      [0.306853, 0.343146, 0.386294, 0.5]
    """
    if alpha in (0, 1):
        return NAMED["kl_old_new" if alpha == 0 else "kl_new_old"]

    def below(x: Tensor, a: float) -> Tensor:
        x = x.clamp(-_FURTHEST, _FURTHEST)
        # Near ratio 1 the terms of first order must not be there to cancel; far from it they must.
        near, k3 = x.abs() < 1, divergences.k3
        inside = torch.where(near, x, 0.0)
        terms = torch.where(
            near, k3(a * inside) - a * k3(inside), torch.expm1(a * x) - a * torch.expm1(x)
        )
        return terms / (a * (a - 1))

    def above(x: Tensor) -> Tensor:
        # f of alpha at w is w times f of 1 - alpha at 1/w: no cancellation as alpha nears 1.
        x = x.clamp(min=-80)
        return x.clamp(max=_FURTHEST).exp() * below(-x, 1 - alpha)

    generator = above if 0.5 < alpha < 1.5 else lambda x: below(x, alpha)
    return Divergence(f"alpha({alpha:g})", generator)


# User-defined ----------------------------------------------------------------------------------


def from_function(f: Callable[[Tensor], Tensor], name: str = "f") -> Divergence:
    r"""The divergence of a user-defined convex function.

    Args:
      f: elementwise on a float64 tensor of ratios $t > 0$, differentiable by torch, convex,
        $f(1) = 0$. $c\,(t-1)$ is added so that $f'(1) = 0$.
      name: for errors.

    Returns:
      The divergence; computed in float64 whatever the dtype of its argument. The sum
      $f(t) - f'(1)(t-1)$ is good to some 1e-16, so thresholds below 1e-10 lose digits that those of
      the named divergences keep.

    Raises:
      ValueError: ``f`` is not such a function; the message says at which ratio.

    Example:
      >>> own = from_function(lambda t: t * t.log(), "mine")
      >>> [round(math.exp(b), 12) for b in own.log_interval(0.07)]
      [0.649979351242, 1.396835667486]
    """
    slope = _slope_at_one(f, name)

    def generator(x: Tensor) -> Tensor:
        t = x.double().clamp(-_FURTHEST, _FURTHEST).exp()
        return (f(t) - slope * (t - 1)).to(x.dtype)

    _check_convex(f, slope, name)
    return Divergence(name, generator)


def _slope_at_one(f: Callable[[Tensor], Tensor], name: str) -> float:
    one = torch.ones(1, dtype=torch.float64, requires_grad=True)
    try:
        value = f(one)
        (slope,) = torch.autograd.grad(value.sum(), one)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{name} must be a torch function of a ratio: {error}") from error
    if value.shape != one.shape or not abs(value.item()) <= 1e-12:
        raise ValueError(f"{name} must be 0 at ratio 1, got {value.tolist()} there.")
    return slope.item()


def _check_convex(f: Callable[[Tensor], Tensor], slope: float, name: str) -> None:
    t = torch.linspace(-12, 6, 2001, dtype=torch.float64).exp()
    values = f(t).detach()
    if values.shape != t.shape or values.isnan().any() or values.isneginf().any():
        raise ValueError(f"{name} must map every ratio to a number, elementwise.")
    t, values = t[values.isfinite()], values[values.isfinite()]
    step = t.diff()
    slopes = values.diff() / step
    rounding = 1e-14 * (1 + t + values.abs())[1:] / step
    falls = slopes.diff() < -(rounding[1:] + rounding[:-1])
    if falls.any():
        where = t[1:-1][falls][0].item()
        raise ValueError(f"{name} is not convex: its slope falls at ratio {where:.4g}.")
    if not (values - slope * (t - 1) > 1e-9).any():
        raise ValueError(f"{name} is linear in the ratio: its divergence is always 0.")


@lru_cache
def f_divergence(name: str, alpha: float | None = None) -> Divergence:
    """The f-divergence called ``name``.

    Args:
      name: ``"kl_old_new"``, ``"kl_new_old"``, ``"chi2"``, ``"hellinger"``, ``"js"``,
        ``"alpha"``, or ``"package.module:function"`` for `from_function` of your own function.
      alpha: of ``"alpha"``, and only of it.

    Raises:
      ValueError: no such divergence, ``alpha`` missing or out of place, or a function that makes
        no divergence.

    Example:
      >>> f_divergence("alpha", alpha=2.0).name
      'alpha(2)'
    """
    if (name == "alpha") != (alpha is not None):
        raise ValueError(f"`alpha` belongs to divergence 'alpha', got {name!r} with alpha={alpha}.")
    if alpha is not None:
        return alpha_divergence(alpha)
    if ":" in name:
        value = import_object(name, "`divergence`")
        if not callable(value):
            raise ValueError(f"`divergence` {name!r} is not a function.")
        function: Callable[..., Any] = value
        return from_function(function, name)
    if name not in NAMED:
        raise ValueError(unknown("`divergence`", name, [*NAMED, "alpha"]))
    return NAMED[name]
