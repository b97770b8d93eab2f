"""PPO's penalty: a price on the KL divergence in place of a bound."""

from typing import Literal

from trustclip.constraints import divergences, gates
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp, zero_masked


@definition
class PPOPenalty(Method):
    r"""PPO penalty: every token pays for its divergence from the old policy, and none is cut.

    $$
    J_t = w_t A_t - \beta\, \mathrm{KL}_t(\pi_{old} \| \pi_\theta), \qquad
    \frac{\partial J_t}{\partial\log\pi_\theta(y_t)} = w_t A_t - \beta\,(w_t - 1)
    $$

    the second with the estimate k3 of the KL divergence; it is 0 at ratio 1 and pulls back on
    both sides. The penalty does not scale with the advantage, so tokens of advantage 0 are pulled
    too. This is not the penalty towards a reference model, which trainers have on their own.

    The paper's adaptive version doubles or halves $\beta$ between generations to hold the KL
    divergence at a target; here a controller does, whose metric *falls* as the price rises:
    ``beta: {controller: target, metric: k3, target: 0.01, response: falls}``.

    Args:
      beta: $\beta$, price of a nat. The paper tries 0.3, 1, 3 and 10 as constants.
      estimator: ``"k3"``, from the sampled token; ``"exact"``, ``batch.kl_old_new`` over the
        vocabulary, which must carry its graph.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[1.5, 0.5]]).log(), old, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("ppo_penalty", beta=2.0), batch)
      tensor([[0.5000, 1.5000]])

    References:
      Schulman et al., `Proximal policy optimization algorithms
      <https://arxiv.org/abs/1707.06347>`_, 2017, Section 4
    """

    beta: Positive = 1.0
    estimator: Literal["k3", "exact"] = "k3"

    @property
    def requires(self) -> tuple[str, ...]:
        return ("kl_old_new",) if self.estimator == "exact" else ()

    @property
    def traits(self) -> Trait:
        exact = Trait.NEEDS_KL_GRADIENT if self.estimator == "exact" else Trait(0)
        return Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES | exact

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        exact = self.estimator == "exact"
        kl = batch.given("kl_old_new") if exact else divergences.k3(batch.log_ratio)
        gain = gates.soft(batch, safe_exp(batch.log_ratio))
        return Surrogate(gain.objective - zero_masked(self.beta * kl, batch.mask), gain.kept)
