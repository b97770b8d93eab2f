"""SAPO's soft gate: a sigmoid of the ratio in place of a cut."""

import torch

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import choose, safe_expm1
from trustclip.constraints.twins import Twins, verl_settings


@definition
class SoftGate(Method, traits=Trait(0)):
    r"""Soft gate: the objective saturates in the ratio instead of stopping (SAPO).

    $$
    J_t = \frac{4}{\tau}\,\sigma\big(\tau (w_t - 1)\big) A_t, \qquad
    \frac{\partial J_t}{\partial \log\pi_\theta} = w_t\,\mathrm{sech}^2
    \big(\tfrac\tau2 (w_t - 1)\big) A_t
    $$

    with $\tau$ chosen by the sign of the advantage. Every token is kept. The weight is 1 at ratio 1
    and never above the ratio. Compared with a clip, it still trains tokens that a clip would cut,
    and it weakens steps back towards 1, which a clip leaves alone. In the paper the loss is
    aggregated by ``sequence_mean``; here that stays the caller's choice.

    Args:
      temperature_positive: $\tau$ where A > 0.
      temperature_negative: $\tau$ where A <= 0.

    Example:
      >>> import torch, trustclip as tc
      >>> batch = tc.TokenBatch(torch.tensor([[2.0]]).log() - 3, torch.full((1, 1), -3.0),
      ...                       torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
      >>> round(tc.coefficient(tc.method("soft_gate"), batch).item(), 4)
      1.5729

    References:
      Gao et al., `Soft adaptive policy optimization <https://arxiv.org/abs/2511.20347>`_, 2025
    """

    temperature_positive: Positive = 1.0
    temperature_negative: Positive = 1.05

    @property
    def twins(self) -> Twins:
        positive, negative = self.temperature_positive, self.temperature_negative
        return {
            "TRL": {
                "loss_type": "sapo",
                "sapo_temperature_pos": positive,
                "sapo_temperature_neg": negative,
            },
            "verl": verl_settings("sapo", tau_pos=positive, tau_neg=negative),
        }

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        a = batch.advantages
        tau = choose(a > 0, self.temperature_positive, self.temperature_negative, like=a)
        return gates.soft(batch, 4 / tau * torch.sigmoid(tau * safe_expm1(batch.log_ratio)))
