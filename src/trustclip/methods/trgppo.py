"""TRGPPO: clip bounds for each token from a KL trust region, by the token's probability."""

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import ByToken, Method, Positive, UpToOne, definition, need_p_old
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch


@definition
class TRGPPO(Method):
    r"""TRGPPO: a KL limit sets the ratio bounds, wider for rare tokens, never tighter than a clip.

    $$
    -p_t\log w + (1-p_t)\log\frac{1-p_t}{1-p_t w} \le \delta
    \;\Rightarrow\; [l_\delta(p_t), u_\delta(p_t)], \qquad
    \min(l_\delta, 1-\epsilon) \le w_t \le \max(u_\delta, 1+\epsilon)
    $$

    the range of the ratio over all distributions within KL(old || new) of $\delta$, joined
    with PPO's interval. No closed form; solved by a monotone Newton iteration in logit space.
    Without the union it is BandPO's KL band and the threshold of DPPO's binary KL; for small p it
    is k3 with budget $\delta / p$.

    Args:
      delta: $\delta$, nats. 0.05 suits a vocabulary (BandPO); the released code ran Atari
        with 0.001, and with $\epsilon$ = 0.1.
      epsilon: half width of PPO's interval; the bounds are never tighter than it.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import torch, trustclip as tc
      >>> low, high = tc.interval("trgppo", p_old=torch.tensor([0.01, 0.5, 0.99]))
      >>> [round(bound, 4) for bound in high.tolist()]
      [7.8098, 1.3085, 1.2]

    References:
      Wang et al., `Trust region-guided proximal policy optimization
      <https://arxiv.org/abs/1901.10314>`_, 2019
    """

    delta: ByToken[Positive] = 0.05
    epsilon: UpToOne = 0.2
    side: gates.Side = "outward"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self._log_bounds(need_p_old(p_old, self.name).log())

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        # From its logarithm: the probability itself underflows in float32 below e^-104.
        return gates.interval(batch, self._log_bounds(batch.logp_old), self.side)

    def _log_bounds(self, logp_old: Tensor) -> LogBounds:
        low, high = intervals.log_bernoulli_kl(logp_old, self.delta)
        ppo_low, ppo_high = intervals.log_offsets(self.epsilon, self.epsilon)
        return low.clamp(max=ppo_low), high.clamp(min=ppo_high)
