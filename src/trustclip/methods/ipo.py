"""IPO: a token is dropped once its probability has moved too far, in either direction."""

from torch import Tensor

from trustclip.constraints import divergences, gates
from trustclip.constraints.base import (
    AboveOne,
    ByToken,
    Method,
    Positive,
    definition,
    need_p_old,
)
from trustclip.constraints.batch import Anchor, LogBounds, Surrogate, TokenBatch
from trustclip.constraints.twins import Twins


@definition
class IPO(Method):
    r"""IPO: a token has no gradient once its probability is too far from the sampler's.

    $$
    J_t = \min(w_t, C)\, A_t\, \mathbf 1[\, |q_t - p_t| \le \delta \,], \qquad w_t = q_t / p_t
    $$

    with $q$ the token's probability now and $p$ that under the policy that sampled it. The default
    of prime-rl, which has two policies: between sampling and the update nothing is recomputed, so
    the region is one around the sampler and $w$ undoes its mismatch as well. Strict: steps back
    towards $p$ are dropped too, unlike in ``dppo``. A token that was next to impossible for the
    sampler stays inside the region whatever its ratio: with $p = e^{-25}$ and $q = 0.2$ that is
    $10^{10}$, so a kept token weighs $C$ at most. Without $C$ and against the proximal policy it is
    ``bandpo`` with total variation, the strict side and no ceiling.

    prime-rl can add a penalty $\tau \log^2 w$ on all tokens, dropped ones included: $\tau$ was
    $10^{-3}$ in its configuration until September 2026, and is 0 since.

    Args:
      delta: $\delta$, largest change of the probability. 0.3 in prime-rl since September 2026,
        0.1 before.
      ceiling: $C$, largest weight, prime-rl's ``max_importance_ratio``; None for no limit, as in
        prime-rl until August 2026.
      anchor: ``"rollout"`` (prime-rl): p is the sampler's; ``"old"``: the proximal policy's.

    Example:
      >>> import torch, trustclip as tc
      >>> p, q = torch.tensor([[0.2, 0.5, 0.9]]), torch.tensor([[0.4, 0.9, 0.5]])
      >>> batch = tc.TokenBatch(q.log(), q.log(), torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool), logp_rollout=p.log())
      >>> tc.coefficient(tc.method("ipo"), batch)
      tensor([[2.0000, 0.0000, 0.0000]])

    References:
      Prime Intellect, `prime-rl, ipo_loss_fn
      <https://github.com/PrimeIntellect-ai/prime-rl/blob/main/src/prime_rl/trainer/rl/loss.py>`_,
      2026; the region is that of Qi et al., `Rethinking the trust region in LLM reinforcement
      learning <https://arxiv.org/abs/2602.04879>`_, 2026
    """

    delta: ByToken[Positive] = 0.3
    ceiling: AboveOne | None = 1e4
    anchor: Anchor = "rollout"

    @property
    def twins(self) -> Twins:
        if self.anchor == "rollout" or self.ceiling is not None:
            return {}
        band = {"divergence": "tv", "delta": self.delta, "ceiling": None, "side": "strict"}
        return {"trustclip": {"name": "bandpo", **band}}

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return divergences.log_binary_tv_bounds(need_p_old(p_old, self.name).log(), self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        change = divergences.binary_tv(batch.logp_old, batch.logp.detach())  # [batch, time]
        return gates.hard(batch.capped(self.ceiling), change <= self.delta)
