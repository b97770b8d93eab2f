r"""Targets of the token estimators: exact means and variances under $y\sim\pi_{old}$."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trustclip.constraints import divergences
from trustclip_lab.theory.cases import Case

#: Estimator -> the divergence it is meant for. "IS" is k3 weighted by the ratio, in the two
#: readings of that name; the product estimates no KL divergence.
ESTIMATORS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "k1": (divergences.k1, "kl_old_new"),
    "k2": (divergences.k2, "kl_old_new"),
    "k3": (divergences.k3, "kl_old_new"),
    "is_k3": (divergences.is_k3, "kl_new_old"),
    "k3_product": (divergences.k3_product, "kl_new_old"),
}


@dataclass(frozen=True)
class Moments:
    """Exact mean and standard deviation of one token's estimate, nats, and its bias.

    Args:
      mean: expectation over the old policy.
      std: standard deviation over the old policy.
      target: the exact divergence it is meant for.
    """

    mean: float
    std: float
    target: float

    @property
    def bias(self) -> float:
        """Mean minus target, nats."""
        return self.mean - self.target


def exact_divergences(case: Case) -> dict[str, float]:
    r"""KL(old || new), KL(new || old) and $\chi^2$(new || old) by their textbook sums, nats.

    Example:
      >>> p = [[0.5, 0.3, 0.15, 0.05], [0.4, 0.35, 0.1, 0.15]]
      >>> old, new = torch.tensor(p, dtype=torch.float64)
      >>> exact = exact_divergences(Case(new.log(), old.log(), torch.zeros(4)))
      >>> {name: round(value, 7) for name, value in exact.items()}
      {'kl_old_new': 0.0712157, 'kl_new_old': 0.0889406, 'chi2': 0.245}
    """
    old, new = case.logp_old.exp().tolist(), case.logp.exp().tolist()
    pairs = list(zip(old, new, strict=True))
    return {
        "kl_old_new": math.fsum(p * math.log(p / q) for p, q in pairs),
        "kl_new_old": math.fsum(q * math.log(q / p) for p, q in pairs),
        "chi2": math.fsum((q - p) ** 2 / p for p, q in pairs),
    }


def moments(case: Case, name: str) -> Moments:
    r"""Mean and standard deviation of an estimator over $y\sim\pi_{old}$, by exact sums.

    Args:
      case: the state.
      name: of `ESTIMATORS`.

    Example:
      >>> p = [[0.5, 0.3, 0.15, 0.05], [0.4, 0.35, 0.1, 0.15]]
      >>> old, new = torch.tensor(p, dtype=torch.float64)
      >>> case = Case(new.log(), old.log(), torch.zeros(4))
      >>> [round(moments(case, name).std, 4) for name in ("k1", "k2", "k3")]
      [0.3346, 0.1271, 0.1914]
    """
    estimate, target = ESTIMATORS[name]
    values, old = estimate(case.logp - case.logp_old), case.logp_old.exp()
    mean = (old * values).sum()
    variance = (old * (values - mean).square()).sum()
    return Moments(mean.item(), variance.sqrt().item(), exact_divergences(case)[target])


def move(logits_old: Tensor, direction: Tensor, distance: float) -> Case:
    r"""The case in which the logits have moved by ``distance`` along ``direction``."""
    return Case(logits_old + distance * direction, logits_old, torch.zeros_like(logits_old))


def crossing(logits_old: Tensor, direction: Tensor) -> float | None:
    r"""KL(old || new), nats, from which k3 of a token varies more than k1 along a direction.

    Where every ratio is at most 2 it never does: the variances are sums over pairs of tokens of
    $p_ip_j(\Delta w - \Delta\log w)^2$ and $p_ip_j(\Delta\log w)^2$, and the first is the smaller
    while the logarithmic mean $\Delta w/\Delta\log w$ of the two ratios is below 2. A rare token
    whose ratio passes 3.51 is enough to break it.

    Args:
      logits_old: of the old policy. Shape [actions].
      direction: in which the logits move; moves of up to 20 times it are looked at.

    Returns:
      nats, or None where k3 varies less on the whole line.

    Example:
      >>> rare = torch.tensor([0.01, 0.99]).double().log()
      >>> round(crossing(rare, torch.tensor([1.0, 0.0]).double()), 4)
      0.0133
    """
    from scipy.optimize import brentq

    def excess(distance: float) -> float:
        case = move(logits_old, direction, distance)
        return moments(case, "k3").std - moments(case, "k1").std

    step = 0.05
    for i in range(1, 400):
        if excess((i + 1) * step) > 0:
            root: Any = brentq(excess, i * step, (i + 1) * step)
            return exact_divergences(move(logits_old, direction, root))["kl_old_new"]
    return None
