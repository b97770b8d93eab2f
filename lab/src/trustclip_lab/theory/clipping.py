r"""Theorems 4.1 and 4.2: operators with one gradient, and k3 as an interval of the ratio.

Symbols: $w$ the ratio, $A$ the advantage, $[l, u]$ the interval, $C$ the constraint. The paper's
two operators (Eq. 3 and 5) differ in the value of a token outside the interval, the nearest bound
or 1; the theorem says that their gradients agree.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trustclip.constraints import intervals
from trustclip.constraints.base import Method
from trustclip.constraints.gates import Side
from trustclip.constraints.loss import gradient
from trustclip_lab.theory.cases import DOUBLE, Case, Sides


def operator_gradient(case: Case, clipped: Callable[[Tensor], Tensor], side: Side) -> Tensor:
    r"""Gradient of $\min(wA, \text{clip}(w)A)$, or of $\text{clip}(w)A$, by differentiation.

    Args:
      case: the state.
      clipped: ratio -> clipped ratio, a torch function.
      side: ``"outward"`` with the min (the paper's Section 3), ``"strict"`` without (its
        appendix).

    Returns:
      In each action's log-probability. Shape [actions].
    """
    logp = case.logp.clone().requires_grad_()
    ratio = (logp - case.logp_old).exp()
    objective = clipped(ratio) * case.advantages
    if side == "outward":
        objective = torch.min(ratio * case.advantages, objective)
    return torch.autograd.grad(objective.sum(), logp)[0]


def ratio_operator(low: float, high: float) -> Callable[[Tensor], Tensor]:
    """Eq. 3: the nearest bound outside the interval."""
    return lambda w: w.clamp(low, high)


def general_operator(satisfied: Tensor) -> Callable[[Tensor], Tensor]:
    """Eq. 5: the old ratio, which is 1, where the constraint is not satisfied."""
    return lambda w: torch.where(satisfied, w, 1.0)


def gradient_equality(case: Case, low: float, high: float, side: Side = "outward") -> Sides:
    r"""Theorem 4.1: $\nabla\mathcal L^{ratio}$ and $\nabla\mathcal L^{ratio}_{general}$.

    They agree when the interval contains 1. With the min they do not when it does not: between
    1 and the interval ($1 < w < l$, say) the ratio operator moves a token of $A > 0$ towards the
    interval and the general one stops it, and the other way round for $A < 0$.

    Returns:
      Gradients of both objectives in each action's log-probability. Shape [actions].

    Example:
      >>> case = Case(*torch.tensor([[0.3, 0.0, -0.4], [0.0, 0.0, 0.0], [1.0, -1.0, 1.0]]))
      >>> gradient_equality(case, 0.8, 1.2).error
      0.0
      >>> gradient_equality(case, 1.4, 1.6).error
      1.0
    """
    within = (low <= case.ratio) & (case.ratio <= high)
    return Sides(
        operator_gradient(case, ratio_operator(low, high), side),
        operator_gradient(case, general_operator(within), side),
    )


def between(case: Case, low: float, high: float) -> Tensor:
    """Actions whose ratio is strictly between 1 and an interval without 1, and A is not 0."""
    w = case.ratio
    return ((w > 1) & (w < low) | (w > high) & (w < 1)) & (case.advantages != 0)


def method_equality(
    case: Case, method: Method, clipped: Callable[[Tensor], Tensor], side: Side
) -> Sides:
    """A method of the library and an operator of the paper: both gradients in the logits."""
    return Sides(case.gradient(method), case.in_logits(operator_gradient(case, clipped, side)))


def no_ratio_clip(cases: Iterable[Case], method: Method) -> tuple[float, float] | None:
    """A ratio that ``method`` keeps beyond one that it cuts: no clip of the ratio does that.

    Args:
      cases: states whose tokens to compare.
      method: its gate.

    Returns:
      (cut, kept): ratios of two tokens of positive advantage with 1 < cut < kept, or of negative
      advantage with kept < cut < 1; the widest such pair found. None if there is none.
    """
    kept_at: dict[bool, list[float]] = {True: [1.0], False: [1.0]}
    cut_at: dict[bool, list[float]] = {True: [], False: []}
    for case in cases:
        kept = gradient(method, case.batch())[1].kept[:, 0]
        outward = (case.ratio - 1) * case.advantages > 0
        for w, keeps in zip(case.ratio[outward].tolist(), kept[outward].tolist(), strict=True):
            (kept_at if keeps else cut_at)[w > 1].append(w)
    pairs = [(min(cut_at[True], default=math.inf), max(kept_at[True])),
             (max(cut_at[False], default=0.0), min(kept_at[False]))]  # fmt: skip
    inversions = [(cut, keep) for cut, keep in pairs if (keep - cut) * (cut - 1) > 0]
    return max(inversions, key=lambda pair: abs(math.log(pair[1] / pair[0])), default=None)


# Theorem 4.2 -----------------------------------------------------------------------------------


def bisected_bounds(delta: float) -> tuple[float, float]:
    r"""Ratios where $w - 1 - \log w = \delta$, by bisection in $\log w$ alone."""

    def edge(inside: float, outside: float) -> float:
        for _ in range(200):
            middle = 0.5 * (inside + outside)
            if math.expm1(middle) - middle <= delta:
                inside = middle
            else:
                outside = middle
        return math.exp(inside)

    return edge(0.0, -1 - delta), edge(0.0, math.sqrt(2 * delta))


def bounds_of_k3(delta: float) -> Sides:
    r"""Theorem 4.2: the library's $[l_\delta, u_\delta]$ and the roots by bisection. Shape [2].

    Example:
      >>> bounds_of_k3(0.07).error < 1e-14
      True
    """
    library, roots = intervals.ratios(intervals.log_k3(delta)), bisected_bounds(delta)
    return Sides(torch.tensor(library, dtype=DOUBLE), torch.tensor(roots, dtype=DOUBLE))


def lambert_bounds(delta: float) -> tuple[float, float]:
    r"""Eq. 10: $-W_0(-e^{-1-\delta})$ and $-W_{-1}(-e^{-1-\delta})$.

    Example:
      >>> [round(b, 12) for b in lambert_bounds(0.07)]
      [0.67097173825, 1.422216736276]
    """
    from scipy.special import lambertw

    low, high = (-float(lambertw(-math.exp(-1 - delta), branch).real) for branch in (0, -1))
    return low, high


def series_bounds(delta: float) -> tuple[float, float]:
    r"""$1 \pm s + \tfrac{s^2}{3} \pm \tfrac{s^3}{36} - \tfrac{s^4}{270}$ with $s = \sqrt{2\delta}$.

    The next term is $\pm s^5/4320$. The $s^2/3$ on both sides is the asymmetry: the interval
    reaches $2s^2/3 = 4\delta/3$ further up than down.

    Example:
      >>> [round(b, 5) for b in series_bounds(0.07)]
      [0.67097, 1.42221]
    """
    s = math.sqrt(2 * delta)
    low, high = (1 + t + t**2 / 3 + t**3 / 36 - t**4 / 270 for t in (-s, s))
    return low, high


def reachable_bounds(delta: float, p_old: float) -> tuple[float, float]:
    r"""$\min_\theta w$ and $\max_\theta w$ under k3 $\le\delta$, as Theorem 4.2 defines its bounds.

    A probability is at most 1, so $w \le 1/p$ whatever $\theta$ is. For $p > 1/u_\delta$ the
    maximum is $1/p$ and not $-W_{-1}$, and for $p > 1/(2 - l_\delta)$ the range of ratios is
    *narrower* above 1 than below.

    Args:
      delta: threshold, nats.
      p_old: old probability of the token, in (0, 1].

    Example:
      >>> [round(b, 4) for b in reachable_bounds(0.07, p_old=0.9)]
      [0.671, 1.1111]
    """
    low, high = intervals.ratios(intervals.log_k3(delta))
    return low, min(high, 1 / p_old)
