r"""Theorems 5.1 and 5.2: the difference between one step of ATR and one step of a clip.

Symbols: $\eta$ the step size, $d(s)$ the weight of the state, $A$ the advantage, $I$ the indicator
of the event, $\mathbb{E}$ and Cov over $a\sim\pi_{\theta^k}(\cdot|s)$. Both methods step from the
same logits $\theta^k$. The two events:

- ``X-``: $\epsilon = u_\delta - 1$; actions with $w\in[1-\epsilon, l_\delta)$, which the clip keeps
  and ATR cuts ($\sigma = -1$);
- ``X+``: $\epsilon = 1 - l_\delta$; actions with $w\in(1+\epsilon, u_\delta]$, which ATR keeps and
  the clip cuts ($\sigma = +1$).

The paper closes both intervals; a token exactly on the common bound is kept by both.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import intervals
from trustclip.constraints.base import Method
from trustclip.constraints.gates import Side
from trustclip.constraints.registry import method
from trustclip_lab.theory.cases import Case, Sides, entropy

Event = Literal["X-", "X+"]
Form = Literal["stated", "corrected"]


def two_methods(delta: float, event: Event, side: Side = "strict") -> tuple[Method, Method]:
    """ATR and the symmetric clip that shares a bound with it, as methods of the library.

    Example:
      >>> atr, clip = two_methods(0.07, "X+")
      >>> round(clip.low, 6), round(clip.high, 6), clip.side
      (0.329028, 0.329028, 'strict')
    """
    low, high = intervals.ratios(intervals.log_k3(delta))
    epsilon = high - 1 if event == "X-" else 1 - low
    # clip_higher, because an epsilon above 1 is a clip without a lower bound.
    clip = method("clip_higher", low=min(epsilon, 1.0), high=epsilon, side=side)
    return method("atr", delta=delta, side=side), clip


def indicator(case: Case, delta: float, event: Event, side: Side = "strict") -> Tensor:
    r"""$I(a)$: 1 for the actions that one of the two methods keeps and the other cuts.

    With the one-sided operator (``side="outward"``), which training uses, a token is only ever
    cut where its step leads away from ratio 1, so the events shrink to $A<0$ (``X-``) and $A>0$
    (``X+``).

    Returns:
      float64, 0 or 1. Shape [actions].
    """
    low, high = intervals.ratios(intervals.log_k3(delta))
    w = case.ratio
    event_holds = (2 - high <= w) & (w < low) if event == "X-" else (2 - low < w) & (w <= high)
    if side == "outward":
        event_holds &= case.advantages < 0 if event == "X-" else case.advantages > 0
    return event_holds.double()


def logit_difference(
    case: Case, delta: float, event: Event, side: Side = "strict", assumed: Side = "strict"
) -> Sides:
    r"""Theorem 5.1: $\Delta\theta_a/\eta = \sigma\,d\,\pi(a)\,(AI(a) - \mathbb{E}[AI])$.

    Args:
      case: the state.
      delta: ATR's threshold, nats.
      event: which case of the theorem.
      side: the operator that both methods train with.
      assumed: the operator whose $I$ stands in the formula; ``"strict"`` as in the paper.

    Returns:
      The difference of the methods' gradients in the logits by exact sums; the formula.
      Shape [actions].

    Example:
      >>> case = Case(*torch.tensor([[0.0, 0.9], [0.0, 0.0], [1.0, -1.0]]).double())
      >>> logit_difference(case, 0.07, "X+").left
      tensor([ 0.2055, -0.2055], dtype=torch.float64)
      >>> logit_difference(case, 0.07, "X+").error < 1e-15
      True
    """
    atr, clip = two_methods(delta, event, side)
    return Sides(
        case.gradient(atr) - case.gradient(clip),
        _formula(case, indicator(case, delta, event, assumed), event),
    )


def _formula(case: Case, indicators: Tensor, event: Event) -> Tensor:
    p, weighted = case.logp.exp(), case.advantages * indicators
    sign = -1 if event == "X-" else 1
    return sign * case.visits * p * (weighted - (p * weighted).sum())


def natural(case: Case, gradient: Tensor) -> Tensor:
    r"""Natural gradient: $F^{-1} g$ with $F = \text{diag}(\pi) - \pi\pi^\top$, up to a constant.

    Example:
      >>> case = Case(*torch.tensor([[0.0, 0.9], [0.0, 0.0], [1.0, -1.0]]).double())
      >>> g = case.gradient(method("clip"))
      >>> p = case.logp.exp()
      >>> step = natural(case, g)
      >>> torch.allclose((p.diag() - p[:, None] * p) @ step, g)
      True
    """
    return gradient / case.logp.exp()


def entropy_slope(
    case: Case, delta: float, event: Event, form: Form = "corrected", side: Side = "strict"
) -> float:
    r"""Theorem 5.2, over $\eta$: the first-order entropy difference, ATR minus the clip.

    ``"stated"`` is the paper's $-\sigma\,d\,\text{Cov}(AI, \log\pi)$. Its proof loses the factor
    $\pi(a)$ of $\Delta\theta_a$ between the two lines of Eq. 30; ``"corrected"`` has it:

    $-\sigma\,d\,\text{Cov}\big(\pi\,(AI - \mathbb{E}[AI]),\, \log\pi\big)$.

    The stated form is that of the *natural* policy gradient, whose step has no factor $\pi(a)$.

    Args:
      case: the state.
      delta: ATR's threshold, nats.
      event: which case of the theorem.
      form: which of the two.
      side: the operator; sets the indicator.

    Example:
      >>> case = Case(*torch.tensor([[0.0, 0.9, -1], [0.0, 0.0, 0.0], [1.0, -1.0, 0]]).double())
      >>> [round(entropy_slope(case, 0.5, "X+", form), 6) for form in ("stated", "corrected")]
      [0.26846, 0.091608]
    """
    p, logp = case.logp.exp(), case.logp
    weighted = case.advantages * indicator(case, delta, event, side)
    first = weighted if form == "stated" else p * (weighted - (p * weighted).sum())
    sign = 1 if event == "X-" else -1
    centred = logp - (p * logp).sum()
    return sign * case.visits * (p * first * centred).sum().item()


def entropy_difference(
    case: Case,
    delta: float,
    event: Event,
    eta: float,
    *,
    side: Side = "strict",
    by_natural_gradient: bool = False,
) -> float:
    r"""Exact $\mathcal H(\theta^{ATR,k+1}) - \mathcal H(\theta^{clip,k+1})$ after one step, nats.

    Args:
      case: the state.
      delta: ATR's threshold, nats.
      event: which clip ATR is compared with.
      eta: $\eta$, step size.
      side: the operator that both methods train with.
      by_natural_gradient: step along the natural gradient instead of the gradient.
    """
    steps = _steps(case, two_methods(delta, event, side), by_natural_gradient)
    return _apart(case, steps, eta)


def _steps(case: Case, methods: tuple[Method, Method], by_natural_gradient: bool) -> list[Tensor]:
    gradients = [case.gradient(one) for one in methods]
    return [natural(case, g) for g in gradients] if by_natural_gradient else gradients


def _apart(case: Case, steps: list[Tensor], eta: float) -> float:
    after_atr, after_clip = (entropy(case.logits + eta * step) for step in steps)
    return after_atr - after_clip


def remainder_order(
    case: Case,
    delta: float,
    event: Event,
    form: Form = "corrected",
    *,
    side: Side = "strict",
    by_natural_gradient: bool = False,
) -> float:
    r"""Order in $\eta$ of the remainder of a first-order formula: $\log_2 r(\eta)/r(\eta/2)$.

    With $r(\eta)$ the exact entropy difference less $\eta$ times the slope, at $\eta$ = 0.001. A
    right formula leaves a remainder of order 2, a wrong one a remainder of order 1.

    Example:
      >>> case = Case(*torch.tensor([[0.0, 0.9, -1], [0.0, 0.0, 0.0], [1.0, -1.0, 0]]).double())
      >>> [round(remainder_order(case, 0.5, "X+", form), 2) for form in ("stated", "corrected")]
      [1.0, 2.0]
    """
    slope = entropy_slope(case, delta, event, form, side)
    steps = _steps(case, two_methods(delta, event, side), by_natural_gradient)
    full, half = (_apart(case, steps, eta) - eta * slope for eta in (1e-3, 0.5e-3))
    return math.log2(abs(full / half))


def lone_action_slopes(p: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    r"""Stated and corrected slope of ``X+`` when one action of probability $p$ has $AI = 1$.

    For the picture of where the sign of the entropy difference changes.

    Args:
      p: probabilities of the action, float64. Shape [points].
      others: the other actions' shares of the rest, summing to 1. Shape [actions - 1].

    Returns:
      (stated, corrected), nats per unit of $\eta\,d\,A$. Shape [points] each.
    """
    policy = torch.cat([p[:, None], (1 - p)[:, None] * others], dim=1)
    centred = policy.log() - (policy * policy.log()).sum(dim=1, keepdim=True)
    weighted = torch.zeros_like(policy)
    weighted[:, 0] = 1
    step = policy * (weighted - p[:, None])
    return -(policy * weighted * centred).sum(dim=1), -(policy * step * centred).sum(dim=1)
