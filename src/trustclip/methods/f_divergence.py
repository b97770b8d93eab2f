"""A constraint on an f-divergence, of the token's ratio or of its probability."""

from typing import Literal

from torch import Tensor

from trustclip.constraints import divergences, gates, intervals
from trustclip.constraints.base import ByToken, Interval, Positive, definition
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch

#: The generator of each divergence, of the log-ratio, and the log-ratio bounds of a threshold.
MEASURES = {
    "kl_old_new": (divergences.k3, intervals.log_k3),
    "kl_new_old": (divergences.is_k3, intervals.log_is_k3),
    "chi2": (divergences.chi2, intervals.log_chi2),
    "hellinger": (divergences.hellinger, intervals.log_hellinger),
    "js": (divergences.js, intervals.log_js),
}


@definition
class FDivergence(Interval):
    r"""f-divergence: a chosen f-divergence of the token stays within a threshold.

    $$
    f(w_t) \le \delta, \qquad w_t = \pi_\theta(y_t) / \pi_{old}(y_t)
    $$

    with $f$ convex, $f(1) = f'(1) = 0$. Under samples of the old policy $f(w)$ estimates the
    divergence $\mathbb{E}_{old} f(w)$ without bias:

    - ``kl_old_new``: $w - 1 - \log w$ (from $-\log w$), estimates KL(old || new);
    - ``kl_new_old``: $1 - w + w\log w$ (from $w\log w$), estimates KL(new || old);
    - ``chi2``: $(w-1)^2$, Pearson's chi2(new || old);
    - ``hellinger``: $(\sqrt w - 1)^2$, the squared Hellinger distance, at most 2;
    - ``js``: $\frac12(w\log\frac wm - \log m)$ with $m = (1+w)/2$, Jensen and Shannon's, at most
      $\log 2$.

    ``kl_old_new`` is ``atr``, ``kl_new_old`` is ``is_kl3``. Bounds that are wider the rarer the
    token, from divergences of its probability, are those of ``bandpo``.

    Args:
      divergence: one of the above.
      delta: $\delta$, in the unit of the divergence (nats, but for chi2 and hellinger).
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import trustclip as tc
      >>> [round(b, 6) for b in tc.interval("f_divergence", divergence="js", delta=0.01)]
      [0.736922, 1.303078]

    References:
      Csiszár, Information-type measures of difference of probability distributions, 1967
    """

    divergence: Literal["kl_old_new", "kl_new_old", "chi2", "hellinger", "js"] = "kl_old_new"
    delta: ByToken[Positive] = 0.07
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        _, log_bounds = MEASURES[self.divergence]
        return log_bounds(self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        if not isinstance(self.delta, Tensor):
            return super().surrogate(batch)
        # Of a threshold for each token, the divergence itself says whether the token is inside.
        measure, _ = MEASURES[self.divergence]
        x = batch.log_ratio
        satisfied = measure(x.detach()) <= self.delta
        return gates.hard(batch, gates.keeps_gradient(satisfied, x, batch.advantages, self.side))
