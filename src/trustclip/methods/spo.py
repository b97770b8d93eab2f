"""SPO: a quadratic in the ratio with its optimum at the clip's bound."""

from trustclip.constraints import divergences, gates
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp


@definition
class SPO(Method, traits=Trait.REVERSES):
    r"""SPO: a quadratic penalty on the ratio reverses the gradient beyond the clip's bound.

    $$
    J_t = w_t A_t - \frac{|A_t|}{2\epsilon} (w_t - 1)^2, \qquad
    \frac{\partial J_t}{\partial\log\pi_\theta(y_t)} =
    w_t \Big(1 - \mathrm{sign}(A_t)\,\frac{w_t - 1}{\epsilon}\Big) A_t
    $$

    The gradient fades to 0 at $1+\epsilon$ (A > 0) or $1-\epsilon$ (A < 0) and pulls
    back beyond, where PPO's clip would let the ratio drift; on the other side of 1 it is stronger
    than PPO's. No token is cut.

    Args:
      epsilon: $\epsilon$, distance from ratio 1 at which the gradient is 0.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[1.1, 1.2, 1.4]]).log(), old, torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> [round(c, 4) + 0 for c in tc.coefficient(tc.method("spo"), batch)[0].tolist()]
      [0.55, 0.0, -1.4]

    References:
      Xie et al., `Simple policy optimization <https://arxiv.org/abs/2401.16025>`_, 2024
    """

    epsilon: Positive = 0.2

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.log_ratio
        price = batch.advantages.sign() * divergences.chi2(x) / (2 * self.epsilon)
        return gates.soft(batch, safe_exp(x) - price)
