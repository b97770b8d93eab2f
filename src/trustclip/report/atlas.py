"""The gate of every method as a curve: weight of the gradient over the ratio."""

from collections.abc import Sequence

import torch

from trustclip.batch import TokenBatch
from trustclip.loss import coefficient
from trustclip.method import Method, method, methods

#: Old probability at which methods that depend on it are drawn.
P_OLD = 0.3
#: Methods whose constraint is not a function of the token's own ratio, drawn as if the exact KL
#: of its position were k3 of the token.
_FROM_K3 = ("kl_old_new", "kl_new_old")


def curve(
    chosen: Method, points: int = 401, steps: Sequence[float] = ()
) -> tuple[list[float], list[float], list[float]]:
    """Weight $c$ of the gradient $c A \\nabla\\log\\pi$ for ratios from 0 to 3.4.

    Args:
      chosen: the method.
      points: on the curve, evenly.
      steps: ratios where it jumps, each drawn from just below to just above.

    Returns:
      (ratios, weights for A = 1, weights for A = -1).

    Example:
      >>> ratios, positive, negative = curve(method("clip"), points=35)
      >>> [round(x, 6) for x in (ratios[13], positive[13], negative[13])]
      [1.3, 0.0, 1.3]
    """
    from trustclip.divergences import k3

    even = torch.linspace(0, 3.4, points, dtype=torch.float64).clamp(min=1e-3)
    around = [step * (1 + sign * 1e-6) for step in steps for sign in (-1, 1)]
    ratios = torch.cat([even, torch.tensor(around, dtype=torch.float64)]).sort().values
    weights = []
    for sign in (1.0, -1.0):
        # One token a row: what a method measures over a batch must not mix ratios.
        rows = []
        for ratio in ratios:
            old = torch.full((1, 1), P_OLD, dtype=torch.float64).log()
            x = ratio.log().reshape(1, 1)
            batch = TokenBatch(
                old + x, old, torch.full((1, 1), sign, dtype=torch.float64),
                torch.ones(1, 1, dtype=torch.bool), keys=torch.zeros(1, 1, dtype=torch.int64),
                logp_rollout=old, **dict.fromkeys(_FROM_K3, k3(x)),
            )  # fmt: skip
            rows.append(coefficient(chosen, batch).item() / sign)
        weights.append([round(c, 12) for c in rows])
    return ratios.tolist(), weights[0], weights[1]


def every_gate() -> str:
    """SVG of the gates of all methods at their defaults."""
    from trustclip.report.figures import gates

    return gates({name: curve(method(name)) for name in methods()})
