"""ATR: the approximate trust region, a constraint on k3."""

from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import divergences, gates, intervals, levels
from trustclip.constraints.base import ByToken, Method, Positive, Trait, clips, definition, spans
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch


@definition
class ATR(Method):
    r"""ATR: a token is kept while its k3 estimate of the KL divergence is small (ATR-GRPO).

    $$
    k_3(w_t) = w_t - 1 - \log w_t \le \delta, \qquad w_t = \pi_\theta(y_t)/\pi_{old}(y_t)
    $$

    Under samples of the old policy $k_3$ estimates KL(old || new) without bias. The
    constraint is the ratio interval $[l_\delta, u_\delta]$, roots of $k_3 = \delta$,
    with $1 - l_\delta < u_\delta - 1$ (Theorem 4.2): the ratio may rise further than fall.
    The same gradient as ``clip_higher`` with those bounds.

    *Levels.* Beyond the paper, the constraint can be one of the prefix that ends in the token, of
    an agent's turn, or of the whole sequence, on what ``reduction`` makes of its tokens ($s$ their
    geometric mean ratio):

    $$
    k_3(s) \le \delta, \qquad \frac1T\sum_t k_3(w_t) \le \delta, \qquad
    \sum_t k_3(w_t) \le \delta \quad\text{or}\quad \max_t k_3(w_t) \le \delta
    $$

    The sum estimates the KL divergence of whole answers, and grows with their length. What weighs
    the gradient is $s$, as in ``gspo``, or the token's own ratio; and that ratio's side of 1
    decides whether a step is outward. The ratio of a level is a constant to the
    gradient, $s A_t \nabla\log\pi_\theta(y_t)$, as in ``gspo``.

    Args:
      delta: $\delta$, nats: per token, or of the level's sum. 0.07 in the paper.
      side: ``"outward"`` cuts only steps away from ratio 1 (the paper's main text), ``"strict"``
        every unsatisfied token (its appendix).
      level: what the constraint covers: the ``"token"`` (the paper), its ``"prefix"``, its
        ``"turn"``, or the ``"sequence"``.
      reduction: ``"ratio"``, k3 of the level's geometric mean ratio; ``"mean"``, ``"sum"`` or
        ``"max"`` of its tokens' k3.
      weight: ``"level"`` weighs the gradient by the level's geometric mean ratio, ``"token"`` by
        the token's own.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 6) for bound in tc.interval("atr", delta=0.07)]
      [0.670972, 1.422217]

    References:
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Eq. 5-6
    """

    delta: ByToken[Positive] = 0.07
    side: gates.Side = "outward"
    level: levels.Level = "token"
    reduction: Literal["ratio", "mean", "sum", "max"] = "ratio"
    weight: Literal["level", "token"] = "level"

    @property
    def traits(self) -> Trait:
        if self.level == "token":
            return Trait.CUTS | Trait.ESTIMATES_KL | clips(self.side)
        of_ratio = (self.reduction, self.weight) == ("ratio", "level")
        own = clips(self.side, self.level) if of_ratio else Trait(0)
        return Trait.CUTS | spans(self.level) | own

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        if self.level != "token" and self.reduction != "ratio":
            return super().log_interval(p_old)
        return intervals.log_k3(self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        one_interval = self.level == "token" or (self.reduction, self.weight) == ("ratio", "level")
        if one_interval and not isinstance(self.delta, Tensor):
            return gates.interval(batch, self.log_interval(), self.side, self.level)
        of_level = levels.log_ratio_at(self.level, batch.log_ratio, batch.mask)
        x = of_level if self.weight == "level" else batch.log_ratio
        if self.reduction == "ratio":
            divergence = divergences.k3(of_level.detach())  # [batch, time], as everything here
        else:
            tokens = divergences.k3(batch.log_ratio.detach())
            divergence = levels.reduce(self.level, self.reduction, tokens, batch.mask)
        # A NaN among the tokens that the level covers makes the token's own value NaN.
        x = x + torch.where(divergence.isnan(), divergence, 0.0)
        satisfied = divergence <= self.delta
        if self.reduction == "ratio" and not isinstance(self.delta, Tensor):
            # The log-ratio is compared, as everywhere: next to a bound, k3 itself rounds to delta.
            low, high = self.log_interval()
            satisfied = (low <= of_level) & (of_level <= high)
        kept = gates.keeps_gradient(satisfied, x, batch.advantages, self.side)
        return gates.hard(batch, kept, log_ratio=x)
