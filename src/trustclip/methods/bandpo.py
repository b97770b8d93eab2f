"""BandPO: clip bounds that an f-divergence ball gives each token by its probability."""

from typing import Literal

from torch import Tensor

from trustclip import divergences, gates, intervals
from trustclip.batch import LogBounds, Surrogate, TokenBatch
from trustclip.method import AboveOne, Method, Positive, definition, need_p_old

#: Log-ratio bounds of each ball from a token's old log-probability and the threshold.
BANDS = {
    "kl": intervals.log_bernoulli_kl,
    "tv": divergences.log_binary_tv_bounds,
    "chi2": divergences.log_binary_chi2_bounds,
}


@definition
class BandPO(Method):
    r"""BandPO: the ratios that a divergence from the old policy allows a token of probability p.

    .. math::
        p_t\, f(w) + (1-p_t)\, f\Big(\frac{1-p_t w}{1-p_t}\Big) \le \delta, \qquad
        0 \le w \le \frac{1}{p_t}

    the range of the ratio over all distributions within :math:`\delta`. ``kl`` is KL(old || new)
    (the interval of ``trgppo`` before its union); ``tv`` is :math:`1 \pm \delta/p`, ``chi2``
    :math:`1 \pm \sqrt{\delta (1-p)/p}`. The rarer the token, the wider: fixed bounds leave a rare
    token almost no probability to gain. The released code can join the band with a clip's interval
    (off in its main scripts): ``either`` of the two does that.

    Args:
      divergence: ``"kl"``, ``"tv"`` or ``"chi2"``.
      delta: :math:`\delta`, in nats for ``kl``.
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
    dual_ceiling: AboveOne | None = None
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return BANDS[self.divergence](need_p_old(p_old, self.name).log(), self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        # By its logarithm: the probability itself underflows in float32 below e^-104.
        band = BANDS[self.divergence](batch.logp_old, self.delta)
        return gates.interval(batch, band, self.side, dropped=gates.over(batch, self.dual_ceiling))
