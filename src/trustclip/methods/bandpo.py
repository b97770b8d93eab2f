"""BandPO: clip bounds for each token from an f-divergence ball, by the token's probability."""

import math
from typing import Literal

from torch import Tensor

from trustclip.constraints import divergences, gates, intervals
from trustclip.constraints.base import AboveOne, Method, Positive, definition, need_p_old
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch

#: Log-ratio bounds of each ball from a token's old log-probability and the threshold.
BANDS = {
    "kl": intervals.log_bernoulli_kl,
    "tv": divergences.log_binary_tv_bounds,
    "chi2": divergences.log_binary_chi2_bounds,
}


@definition
class BandPO(Method):
    r"""BandPO: a divergence from the old policy sets the ratio bounds of a token of probability p.

    $$
    p_t\, f(w) + (1-p_t)\, f\Big(\frac{1-p_t w}{1-p_t}\Big) \le \delta, \qquad
    0 \le w \le \min\Big(\frac{1}{p_t}, c\Big)
    $$

    the range of the ratio over all distributions within $\delta$. ``kl`` is KL(old || new)
    (the interval of ``trgppo`` before its union); ``tv`` is $1 \pm \delta/p$, ``chi2``
    $1 \pm \sqrt{\delta (1-p)/p}$. The rarer the token, the wider: fixed bounds leave a rare
    token almost no probability to gain. The cap $c$ is the released code's: under ``kl`` at 0.05 it
    is in force for p below 0.0071, where the band alone would allow 54 at 0.001. That code can join
    the band with a clip's interval (off in its main scripts): ``either`` of the two does that.

    For a token that is nearly sure the upper bound lies closer to the ratio of probability 1 than
    float32 can tell ($1 - p w$ of 1e-11 at p = 0.998): one whose new log-probability reads 0 is
    kept there, and cut if the same number is taken as exact, in float64.

    Args:
      divergence: ``"kl"``, ``"tv"`` or ``"chi2"``.
      delta: $\delta$, in nats for ``kl``.
      ceiling: $c$, largest upper bound; None leaves it out. 10 in the released code.
      dual_ceiling: ratio past which a token of negative advantage is cut, as in ``dual_clip``;
        None leaves it out. 10 in the released scripts.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import torch, trustclip as tc
      >>> low, high = tc.interval("bandpo", p_old=torch.tensor([0.01, 0.5]))
      >>> [round(bound, 4) for bound in (*low.tolist(), *high.tolist())]
      [0.0025, 0.6915, 7.8098, 1.3085]

    References:
      Li et al., `BandPO: bridging trust regions and ratio clipping via probability-aware bounds
      for LLM reinforcement learning <https://arxiv.org/abs/2603.04918>`_, 2026
    """

    divergence: Literal["kl", "tv", "chi2"] = "kl"
    delta: Positive = 0.05
    ceiling: AboveOne | None = 10.0
    dual_ceiling: AboveOne | None = None
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self._log_bounds(need_p_old(p_old, self.name).log())

    def _log_bounds(self, logp_old: Tensor) -> LogBounds:
        low, high = BANDS[self.divergence](logp_old, self.delta)
        return low, high if self.ceiling is None else high.clamp(max=math.log(self.ceiling))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        # From its logarithm: the probability itself underflows in float32 below e^-104.
        band = self._log_bounds(batch.logp_old)
        return gates.interval(
            batch, band, self.side, dropped=gates.above_ceiling(batch, self.dual_ceiling)
        )
