"""PPO's penalty: the KL divergence as a price, in place of a bound."""

from dataclasses import replace
from typing import Literal

from trustclip import divergences, gates
from trustclip.batch import Surrogate, TokenBatch
from trustclip.masked import safe_exp, zero_masked
from trustclip.method import Method, Positive, definition


@definition
class PPOPenalty(Method):
    r"""PPO penalty: every token pays for its divergence from the old policy, and none is cut.

    .. math::
        J_t = w_t A_t - \beta\, \mathrm{KL}_t(\pi_{old} \| \pi_\theta), \qquad
        \frac{\partial J_t}{\partial\log\pi_\theta(y_t)} = w_t A_t - \beta\,(w_t - 1)

    the second with the estimate k3 of the KL divergence; it is 0 at ratio 1 and pulls back on
    both sides. The penalty does not scale with the advantage, so tokens of advantage 0 are pulled
    too. This is not the penalty towards a reference model, which trainers have on their own.

    The paper's adaptive version changes :math:`\beta` between generations; see `adapted`.

    Args:
      beta: :math:`\beta`, price of a nat. The paper tries 0.3, 1 and 3 as constants.
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

    cuts = False

    beta: Positive = 1.0
    estimator: Literal["k3", "exact"] = "k3"

    @property
    def requires(self) -> tuple[str, ...]:
        return ("kl_old_new",) if self.estimator == "exact" else ()

    @property
    def needs_kl_gradient(self) -> bool:
        return self.estimator == "exact"

    @property
    def moves_without_advantage(self) -> bool:
        return True

    @property
    def reverses(self) -> bool:
        return True

    def adapted(self, kl: float, target: float) -> "PPOPenalty":
        """The method for the next generation, by the paper's rule.

        Args:
          kl: mean KL(old || new) at the end of the generation, nats per token.
          target: what it should have been. 0.003, 0.01 and 0.03 in the paper.

        Returns:
          With half the price where ``kl`` is below ``target / 1.5``, with twice the price where it
          is above ``1.5 * target``, else itself.

        Example:
          >>> PPOPenalty(beta=1.0).adapted(kl=0.02, target=0.01).beta
          2.0
        """
        if kl > 1.5 * target:
            return replace(self, beta=2 * self.beta)
        return replace(self, beta=self.beta / 2) if kl < target / 1.5 else self

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        exact = self.estimator == "exact"
        kl = batch.given("kl_old_new") if exact else divergences.k3(batch.log_ratio)
        gain = gates.weight(batch, safe_exp(batch.log_ratio))
        return Surrogate(gain.objective - zero_masked(self.beta * kl, batch.mask), gain.kept)
