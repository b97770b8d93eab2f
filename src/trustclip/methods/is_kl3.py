"""Constraints on importance-weighted k3, in the two readings of that name."""

from typing import Literal

from torch import Tensor

from trustclip.constraints import divergences, gates, intervals
from trustclip.constraints.base import ByToken, Method, Positive, Trait, clips, definition
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch


@definition
class ISKL3(Method):
    r"""IS-KL3: importance-weighted k3 of the token stays within a threshold.

    The paper names the constraint and gives no formula. Two readings:

    $$
    \text{kl\_new\_old:}\quad w\,(1/w - 1 + \log w) = 1 - w + w\log w \le \delta
    \qquad
    \text{product:}\quad w\,(w - 1 - \log w) \le \delta
    $$

    The first estimates KL(new || old) without bias from samples of the old policy. The second is
    k3 times the ratio, literally; its mean is $\chi^2 - \mathrm{KL}(new \| old)$, and its
    feasible set is no interval: at 0.07 it is (0, 0.0263] and [0.588, 1.3565], and from
    $\delta = 0.1619$ on there is no lower bound at all.

    Args:
      delta: $\delta$, nats.
      form: ``"kl_new_old"`` or ``"product"``.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 6) for bound in tc.interval("is_kl3", delta=0.07)]
      [0.649979, 1.396836]

    References:
      Wu et al., A unified framework for rethinking policy divergence measures in GRPO
      (arXiv 2602.05494), 2026, Table 3;
      the first form as a penalty: `DeepSeek-V3.2 <https://arxiv.org/abs/2512.02556>`_, 2025
    """

    delta: ByToken[Positive] = 0.07
    form: Literal["kl_new_old", "product"] = "kl_new_old"
    side: gates.Side = "outward"

    @property
    def traits(self) -> Trait:
        own = Trait.CUTS | Trait.ESTIMATES_KL
        return own | clips(self.side) if self.form == "kl_new_old" else own

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        if self.form == "product":
            raise ValueError("the product form's feasible set is no interval: w(w - 1 - log w).")
        return intervals.log_is_k3(self.delta)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        product = self.form == "product"
        if not product and not isinstance(self.delta, Tensor):
            return gates.interval(batch, self.log_interval(), self.side)
        x = batch.log_ratio
        measure = divergences.k3_product if product else divergences.is_k3
        satisfied = measure(x.detach()) <= self.delta
        return gates.hard(batch, gates.keeps_gradient(satisfied, x, batch.advantages, self.side))
