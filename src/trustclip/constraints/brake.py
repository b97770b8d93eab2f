"""A controller of the learning rate: an update that few completions carry takes a smaller step."""

import math
from typing import TYPE_CHECKING, Any, Literal

from trustclip.support.checked import UpToOne, checked

if TYPE_CHECKING:  # settings hold a brake, and help does not wait for PyTorch
    from torch import Tensor


@checked
class Brake:
    r"""Scales the learning rate of an update by how few of its completions carry it (VCPO).

    $$
    \eta \leftarrow \eta\, \min\Big(1, \frac{\rho}{\rho_0}\Big)^{1/2}, \qquad
    \rho = \frac{(\sum_i W_i)^2}{B \sum_i W_i^2}, \qquad
    W_i = \prod_t \frac{\pi_\theta(y_{i,t})}{\pi_{rollout}(y_{i,t})}
    $$

    with $\rho$ the effective sample size (Kish) over the number $B$ of completions of the update: 1
    if all weigh alike, $1/B$ if one outweighs the rest. Stale or mismatched samples have ratios of
    heavy tails, so that a few completions make the update; the source finds that $\rho$ falls
    before training collapses, and takes smaller steps then. The ratios are neither clipped nor
    truncated, whatever the method does, and the next update starts from the schedule's own rate.
    The source recomputes $\pi_{old}$ and makes one update with it; here $\pi_\theta$ is the policy
    at the update, the same at the first one of a generation.

    Args:
      rule: "off"; "sqrt", the formula, for optimizers whose step does not grow with the gradient
        (AdamW); "linear", without the root.
      reference: ρ₀, the share at which nothing is scaled; 1 in the released code, and in the paper
        that of on-policy samples.

    Example:
      >>> import math, torch
      >>> weights = torch.tensor([1.0, 1.0, 1.0, 9.0])  # 144 / (4 x 84) = 3/7
      >>> round(Brake(rule="sqrt").factor(weights.log()), 6)
      0.654654

    References:
      Huang et al., `Stable asynchrony: variance-controlled off-policy RL for LLMs
      <https://arxiv.org/abs/2602.17616>`_, 2026, Section 3.2
    """

    rule: Literal["off", "sqrt", "linear"] = "off"
    """Scale the learning rate by the effective sample size: its root (sqrt), or linearly."""
    reference: UpToOne = 1.0
    """Effective sample size, as a share of the completions, from which on nothing is scaled."""

    @property
    def on(self) -> bool:
        """Whether it scales anything."""
        return self.rule != "off"

    def factor(self, log_weights: "Tensor") -> float:
        r"""Factor of the learning rate, in (0, 1], from $\log W_i$ of the update's completions.

        Those that are not finite, to which the sampler gave none, are left out.

        Raises:
          ValueError: no completion has one.
        """
        finite = log_weights[log_weights.isfinite()].double()
        if not len(finite):
            raise ValueError(
                "the brake needs log-probabilities of sampling, and no completion of this update "
                "has them."
            )
        # From logarithms: a weight of 1,000 tokens overflows, and so would its square.
        log_square, log_squares = 2 * finite.logsumexp(0), (2 * finite).logsumexp(0)
        share = math.exp((log_square - log_squares).item()) / len(finite)
        scale = min(1.0, share / self.reference)
        return {"off": 1.0, "sqrt": math.sqrt(scale), "linear": scale}[self.rule]


def as_brake(value: Any) -> Brake:
    """A `Brake` from itself, a mapping of its fields, or None for none.

    Raises:
      ValueError: unknown field, or a value out of range.
    """
    return value if isinstance(value, Brake) else Brake(**(value or {}))
