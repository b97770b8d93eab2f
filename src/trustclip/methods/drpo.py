"""DRPO: DPPO's region of probabilities, with a quadratic price instead of a mask."""

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp, safe_expm1


@definition
class DRPO(Method, traits=Trait.REVERSES):
    r"""DRPO: a quadratic penalty on the change of probability bends the gradient back smoothly.

    $$
    J_t = w_t A_t - \frac{|A_t|}{2\delta}\, p_t (w_t - 1)^2, \qquad
    \frac{\partial J_t}{\partial\log\pi_\theta(y_t)} =
    w_t \Big(1 - \mathrm{sign}(A_t)\,\frac{q_t - p_t}{\delta}\Big) A_t
    $$

    with $p, q$ the old and new probability of the token: ``spo`` with $\epsilon = \delta/p_t$, so
    that what fades the gradient is the change of the probability, as in ``dppo``, and not the
    ratio. It is 0 where the probability has moved by $\delta$ in the direction of the advantage,
    and pulls back beyond, where ``dppo`` cuts. No token is cut.

    No probability moves by more than 1: at the authors' $\delta$ of 12.5 a weight is at least 92 %
    and at most 108 % of the ratio, and nothing pulls back. For a region of the size of ``dppo``'s
    take its 0.15.

    Args:
      delta: $\delta$, change of the probability at which the gradient is 0. 12.5 in the paper's
        experiments and the released code.
      anchor: ``"old"``, or ``"rollout"`` (the source): what is p, and what the ratio is relative
      to.

    Example:
      >>> import torch, trustclip as tc
      >>> p, q = torch.tensor([[0.5, 0.5, 0.01]]), torch.tensor([[0.6, 0.7, 0.03]])
      >>> batch = tc.TokenBatch(q.log(), p.log(), torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> [round(c, 4) for c in tc.coefficient(tc.method("drpo", delta=0.15), batch)[0].tolist()]
      [0.4, -0.4667, 2.6]

    References:
      Yao et al., `Rethinking the divergence regularization in LLM RL
      <https://arxiv.org/abs/2606.09821>`_, 2026; `released code
      <https://github.com/Tencent-Hunyuan/UniRL/blob/main/unirl/algorithms/drpo.py>`_
    """

    delta: Positive = 12.5
    anchor: Anchor = "old"

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        x = batch.log_ratio
        # p (w - 1)^2 as two factors of sqrt(p): neither overflows before their product would.
        gap = (batch.logp_old / 2).exp() * safe_expm1(x)  # [batch, time]
        price = batch.advantages.sign() * gap**2 / (2 * self.delta)
        return gates.soft(batch, safe_exp(x) - price)
