"""The weight of a method's gradient over the ratio, as numbers and as a curve."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trustclip.constraints.base import Method
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.candidates import Candidates
from trustclip.constraints.divergences import k3
from trustclip.constraints.loss import coefficient

#: Old probability at which methods that depend on it are drawn.
P_OLD = 0.3


def weights(chosen: Method, ratios: Tensor, probabilities: Sequence[float]) -> Tensor:
    """Weight $c$ of the gradient $c A \\nabla\\log\\pi$ of a single token.

    A method's quantities that are not functions of the token's own ratio, such as the exact KL
    divergence of the position, are set to k3 of the token; the entropy has not changed, and
    ``centered`` has no candidates to subtract anything over.

    Returns:
      float64, for A = 1 and A = -1. Shape [2, old probabilities, ratios].

    Example:
      >>> import trustclip as tc
      >>> ratios = torch.tensor([1.0, 1.3], dtype=torch.float64)
      >>> [round(c, 6) for c in weights(tc.method("clip"), ratios, (0.3,)).flatten().tolist()]
      [1.0, 0.0, 1.0, 1.3]
    """
    signs = [_of_sign(chosen, ratios, probabilities, sign) for sign in (1.0, -1.0)]
    return torch.stack(signs)


def _of_sign(chosen: Method, ratios: Tensor, probabilities: Sequence[float], a: float) -> Tensor:
    if chosen.statistics_over == "micro_batch" and len(probabilities) * len(ratios) > 1:
        # One batch for each: a statistic over a batch must not mix ratios.
        rows = [[_of_sign(chosen, r[None], (p,), a) for r in ratios] for p in probabilities]
        return torch.cat([torch.cat(row, dim=1) for row in rows])
    shape = (len(probabilities), len(ratios))
    old = torch.tensor(probabilities, dtype=torch.float64).log()
    old = old[:, None].expand(shape).reshape(-1, 1)  # [probabilities * ratios, 1]: a token a row
    x = ratios.log().expand(shape).reshape(-1, 1)  # log-ratio, same shape
    nobody = torch.full_like(x, -torch.inf)[..., None]  # no candidate: nothing is centered
    batch = TokenBatch(
        old + x, old, torch.full_like(x, a), torch.ones_like(x, dtype=torch.bool),
        kl_old_new=k3(x), kl_new_old=k3(x), logp_rollout=old, logp_ref=old,
        entropy=torch.ones_like(x), entropy_old=torch.ones_like(x),
        keys=torch.zeros_like(x, dtype=torch.int64), candidates=Candidates(nobody, nobody, nobody),
        density=True,  # ratios are drawn whose new probability would be above 1
    )  # fmt: skip
    if chosen.statistics_over == "generation":
        batch = replace(batch, statistics=chosen.statistics(replace(batch, logp=old)))
    return (coefficient(chosen, batch) / a).view(shape)


#: Smallest difference of neighbouring weights behind which a jump is looked for, and into how many
#: parts their distance is divided to find it.
_JUMP, _PARTS = 0.06, 32


def curve(
    chosen: Method, points: int = 401, p_old: float = P_OLD
) -> tuple[list[float], list[float], list[float]]:
    """`weights` for ratios from 0 to 3.4, and on both sides of every jump.

    Returns:
      (ratios, weights for A = 1, weights for A = -1).

    Example:
      >>> import trustclip as tc
      >>> ratios, positive, negative = curve(tc.method("clip", epsilon=0.25), points=35)
      >>> [round(x, 6) for x in (ratios[17], positive[17], negative[17])]
      [1.3, 0.0, 1.3]
    """
    even = torch.linspace(0, 3.4, points, dtype=torch.float64).clamp(min=1e-3)
    steep = (weights(chosen, even, (p_old,)).diff().abs() > _JUMP).flatten(0, 1).any(0)
    width = even.diff()[steep, None] * torch.linspace(0, 1, _PARTS + 1, dtype=even.dtype)
    inside = even[:-1][steep, None] + width  # [steep places, parts + 1]
    fine = weights(chosen, inside.flatten(), (p_old,)).unflatten(-1, inside.shape)[:, 0]
    size, at = fine.diff().abs().max(-1)  # [2, steep places]
    jumps = size > (fine[..., -1] - fine[..., 0]).abs() / 2
    place, part = jumps.nonzero()[:, 1], at[jumps]
    ratios = torch.cat([even, inside[place, part], inside[place, part + 1]]).unique()
    positive, negative = (
        [round(c, 12) for c in row.tolist()] for row in weights(chosen, ratios, (p_old,))[:, 0]
    )
    return ratios.tolist(), positive, negative
