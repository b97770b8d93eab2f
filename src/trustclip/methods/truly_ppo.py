"""Truly PPO and its variants, which differ in what tokens outside the trust region get."""

from typing import Literal

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import (
    Method,
    NonNegative,
    Positive,
    Trait,
    UpToOne,
    definition,
    value,
)
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp, zero_masked

Variant = Literal["tr_ppo", "ppo_rb", "trppo_rb", "truly"]

#: Thresholds (nats) and slopes of the released continuous-control code.
DELTA = {"tr_ppo": 0.035, "ppo_rb": 0.0, "trppo_rb": 0.03, "truly": 0.03}
SLOPE = {"tr_ppo": 0.0, "ppo_rb": 0.3, "trppo_rb": 0.05, "truly": 5.0}


@definition
class TrulyPPO(Method):
    r"""Truly PPO: the exact KL bounds each token, and a token that leaves its bound is pulled back.

    A token is triggered when its gradient would move its ratio further from 1 and it is outside
    the region. The variants differ in the region and in what a triggered token gets:

    $$
    \text{tr\_ppo:} \quad & \mathrm{KL}_t > \delta: \; 0 \\
    \text{ppo\_rb:} \quad & w_t \notin [1-\epsilon, 1+\epsilon]: \; -\alpha\, w_t A_t \\
    \text{trppo\_rb:} \quad & \mathrm{KL}_t > \delta: \; -\alpha\, w_t A_t \\
    \text{truly:} \quad & \mathrm{KL}_t > \delta: \; \lambda\, w_t A_t - \alpha\,\mathrm{KL}_t
    $$

    with KL = KL(old || new), exact. In ``truly`` the pull is the gradient of the KL itself, and is
    not scaled by the advantage; it flows through ``batch.kl_old_new``, so that field must carry
    its graph for the pull to act.

    Args:
      variant: see above. ``"tr_ppo"`` is the gate alone, ``full_kl`` at another threshold.
      delta: $\delta$, nats; None is the released code's for the variant
        (0.035, -, 0.03, 0.03).
      epsilon: $\epsilon$ of ``ppo_rb``.
      slope: $\alpha$; None is the released code's for the variant (-, 0.3, 0.05, 5).
      slope_likelihood: $\lambda$ of ``truly``.

    Example:
      >>> import torch, trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[1.5]]).log() - 2, torch.full((1, 1), -2.0),
      ...                       torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
      >>> tc.coefficient(tc.method("truly_ppo", variant="ppo_rb"), batch)
      tensor([[-0.4500]])

    References:
      Wang et al., `Truly proximal policy optimization <https://arxiv.org/abs/1903.07940>`_, 2020
    """

    variant: Variant = "tr_ppo"
    delta: Positive | None = None
    epsilon: UpToOne = 0.2
    slope: NonNegative | None = None
    slope_likelihood: NonNegative = 1.0

    @property
    def source_delta(self) -> float:
        """The released code's threshold, in use where ``delta`` is None."""
        return DELTA[self.variant]

    @property
    def requires(self) -> tuple[str, ...]:
        return () if self.variant == "ppo_rb" else ("kl_old_new",)

    @property
    def traits(self) -> Trait:
        if self.variant == "tr_ppo":
            return Trait.CUTS
        back = Trait.CUTS | Trait.REVERSES
        return back | Trait.NEEDS_KL_GRADIENT if self.variant == "truly" else back

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.log_ratio
        if self.variant == "ppo_rb":
            low, high = intervals.log_offsets(self.epsilon, self.epsilon)
            satisfied = (low <= x) & (x <= high)
        else:
            satisfied = batch.given("kl_old_new").detach() <= value(self, "delta")
        kept = gates.keeps_gradient(satisfied, x, batch.advantages, "outward")
        if self.variant == "tr_ppo":
            return gates.hard(batch, kept)
        slope = SLOPE[self.variant] if self.slope is None else self.slope
        if self.variant != "truly":
            return gates.rollback(batch, kept, slope)
        kl, triggered = batch.given("kl_old_new"), batch.mask & ~kept
        scale = zero_masked(kl.new_full(kl.shape, self.slope_likelihood - 1), triggered) + 1
        inside = gates.soft(batch, scale * safe_exp(x))
        pull = zero_masked(slope * kl, triggered)
        return Surrogate(inside.objective - pull, kept & batch.mask)
