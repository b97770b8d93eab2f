"""A constraint on an f-divergence, of the token's ratio or of its probability."""

from typing import Literal

from torch import Tensor

from trustclip.constraints import gates
from trustclip.constraints.base import (
    ByToken,
    Method,
    Positive,
    Trait,
    clips,
    definition,
    need_p_old,
)
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.fdivergences import NAMED


@definition
class FDivergence(Method):
    r"""f-divergence: a chosen f-divergence of the token stays within a threshold.

    $$
    \text{ratio:}\quad f(w_t) \le \delta
    \qquad\text{or}\qquad
    \text{bernoulli:}\quad
    p_t\, f(w_t) + (1-p_t)\, f\Big(\frac{1-p_t w_t}{1-p_t}\Big) \le \delta
    $$

    with $p_t$ the old probability of the token and $f$ convex,
    $f(1) = f'(1) = 0$. Under samples of the old policy $f(w)$ estimates
    $\mathbb{E}_{old} f(w)$ without bias; the second form is the least divergence that any
    two distributions with these probabilities of the token have. Directions:

    - ``kl_old_new``: $w - 1 - \log w$ (from $-\log w$), estimates KL(old || new);
    - ``kl_new_old``: $1 - w + w\log w$ (from $w\log w$), estimates KL(new || old);
    - ``chi2``: $(w-1)^2$, Pearson's chi2(new || old);
    - ``hellinger``: $(\sqrt w - 1)^2$, the squared Hellinger distance, at most 2;
    - ``js``: $\frac12(w\log\frac wm - \log m)$ with $m = (1+w)/2$, Jensen and Shannon's, at most
      $\log 2$.

    ``kl_old_new`` of the ratio is ``atr``; of the probability it is ``trgppo`` without its union
    with PPO's interval (BandPO's band), and ``chi2`` there is BandPO's other band.

    Args:
      divergence: one of the above.
      delta: $\delta$, in the unit of the divergence (nats, but for chi2 and hellinger).
      bounds: ``"ratio"``, the same interval for every token, or ``"bernoulli"``, one that is wider
        the rarer the token.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import torch, trustclip as tc
      >>> [round(b, 6) for b in tc.interval("f_divergence", divergence="js", delta=0.01)]
      [0.736922, 1.303078]
      >>> low, high = tc.interval("f_divergence", torch.tensor([0.01, 0.9]), divergence="chi2",
      ...                         bounds="bernoulli", delta=0.05)
      >>> [round(b, 4) for b in high.tolist()]
      [3.2249, 1.0745]

    References:
      Csiszár, Information-type measures of difference of probability distributions, 1967;
      the bands: `BandPO <https://arxiv.org/abs/2603.04918>`_, 2026
    """

    divergence: Literal["kl_old_new", "kl_new_old", "chi2", "hellinger", "js"] = "kl_old_new"
    delta: ByToken[Positive] = 0.07
    bounds: Literal["ratio", "bernoulli"] = "ratio"
    side: gates.Side = "outward"

    @property
    def traits(self) -> Trait:
        own = clips(self.side) if self.bounds == "ratio" else Trait(0)
        return Trait.CUTS | own

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        if self.bounds == "ratio":
            return NAMED[self.divergence].log_interval(self.delta)
        logp_old = need_p_old(p_old, self.name).log()
        return NAMED[self.divergence].log_bernoulli_interval(logp_old, self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        by_ratio = self.bounds == "ratio"
        if by_ratio and not isinstance(self.delta, Tensor):
            return gates.interval(batch, self.log_interval(), self.side)
        # Whether a token is inside follows from the divergence itself, without finding a root.
        measure, new = NAMED[self.divergence], batch.logp.detach()
        if by_ratio:
            divergence = measure.token(new - batch.logp_old)
        else:
            divergence = measure.bernoulli(batch.logp_old, new)
        kept = gates.keeps_gradient(
            divergence <= self.delta, batch.log_ratio, batch.advantages, self.side
        )
        return gates.hard(batch, kept)
