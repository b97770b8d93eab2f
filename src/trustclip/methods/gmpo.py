"""GMPO: the geometric mean of clipped token ratios."""

from typing import ClassVar

import torch
from torch import Tensor

from trustclip.constraints import gates, levels
from trustclip.constraints.base import Method, Positive, definition
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp
from trustclip.constraints.twins import Twins, verl_bounds, verl_settings


@definition
class GMPO(Method):
    r"""GMPO: each token's ratio is clipped, and their geometric mean weights the sequence.

    $$
    \rho = \exp\Big(\frac1T \sum_t \log \bar w_t\Big), \qquad
    \bar w_t = \text{the nearest of } [e^{-\epsilon_{low}}, e^{\epsilon_{high}}] \text{ where }
    (w_t - 1) A_t > 0, \text{ else } w_t, \qquad
    \frac{\partial J}{\partial\log\pi_\theta(y_t)} = \rho A
    $$

    for tokens that are not clipped (0 for the others, which still move $\rho$), with $\rho$ a
    constant to the gradient: the source's, which follows the mean, wherever the tokens of a
    sequence share their advantage and nothing around the method weighs them apart. Where advantages
    differ, a token of $A_t = 0$ counts in $\rho$ with its own $w_t$; the source counts it as 1.

    An outlier among the ratios moves a geometric mean far less than the arithmetic one of GRPO, so
    the bounds are wide. Each token carries $\rho A$: with ``sequence_mean`` (TRL's loss type
    ``grpo``) that is the paper's objective.

    Args:
      log_low: $\epsilon_{low}$, nats below log-ratio 0.
      log_high: $\epsilon_{high}$, nats above it.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -2.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[-0.2, -0.5, 0.1]]), old, -torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> tc.coefficient(tc.method("gmpo"), batch)  # the mean of -0.2, -0.4 and 0.1 is -1/6
      tensor([[-0.8465,  0.0000, -0.8465]])

    References:
      Zhao et al., `Geometric-mean policy optimization <https://arxiv.org/abs/2507.20673>`_, 2025
    """

    level: ClassVar[levels.Level] = "sequence"

    log_low: Positive = 0.4
    log_high: Positive = 0.4

    @property
    def twins(self) -> Twins:
        return {
            "trl.experimental.gmpo": {"epsilon": self.log_low, "epsilon_high": self.log_high},
            "verl": verl_settings("geo_mean", **verl_bounds(self.log_low, self.log_high)),
        }

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return -self.log_low, self.log_high

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x, (low, high) = batch.log_ratio, (-self.log_low, self.log_high)
        inside = (low <= x) & (x <= high)  # [batch, time], as everything here
        kept = gates.keeps_gradient(inside, x, batch.advantages, "outward")
        clipped = torch.where(kept, x, x.clamp(low, high)).detach()
        rho = safe_exp(levels.reduce("sequence", "mean", clipped, batch.mask))
        return gates.score_function(batch, rho, kept)
