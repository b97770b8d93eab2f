"""KPop: drop tokens where sampler and trainer diverge, by a KL divergence in both directions."""

from typing import Literal

from trustclip.constraints.base import Positive, definition
from trustclip.constraints.compose import Choice
from trustclip.constraints.registry import Part
from trustclip.methods.atr import ATR
from trustclip.methods.sampler import Sampler


@definition
class KPop(Choice):
    r"""KPop: any method drops the tokens whose sampler and trainer distributions diverge.

    $$
    \rho_t\, \mathbf 1[D(p_t \| s_t) \le \delta]\, \mathbf 1[D(s_t \| p_t) \le \delta]\, J_t, \qquad
    D(p \| s) = p \log\frac ps + (1-p) \log\frac{1-p}{1-s}
    $$

    with $J_t$ the objective of ``inner``, $s$ the sampler's probability of the token, $p$ the
    proximal policy's, and $\rho = p/s$: ``icepop`` with another mask. Bounds on $\rho$ alone let a
    token of probability near 1 move freely and hold a rare one tightly; the divergence of "this
    token or any other" does not. In nats, both directions.

    Args:
      inner: the method to correct: its name, or a mapping with ``name`` and hyper-parameters.
      delta: largest divergence in either direction, nats. 0.1 in the source; AReaL's example has 2.
      policy: which policy is $p$: ``"old"`` (the source, AReaL), or ``"new"``, the one in training
        (prime-rl); the weight is $\rho$ in both, see ``icepop``.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.tensor([[0.5, 0.01, 0.99]]).log()
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool),
      ...                       logp_rollout=torch.tensor([[0.4, 0.03, 0.8]]).log())
      >>> tc.coefficient(tc.method("kpop", inner="clip"), batch)  # 0.33 for 0.03: a rare token
      tensor([[1.2500, 0.3333, 0.0000]])

    References:
      Guo et al., `KPop: taming training-inference mismatch in reinforcement learning with adaptive
      masking regions <https://ringtech.notion.site/kpop>`_, 2026
    """

    also_requires = ("logp_rollout",)

    inner: Part = ATR()
    delta: Positive = 0.1
    policy: Literal["old", "new"] = "old"

    def as_sampler(self) -> Sampler:
        return Sampler(
            inner=self.inner,
            measure="binary_kl",
            between="old_rollout" if self.policy == "old" else "new_rollout",
            ceiling=self.delta,
            weigh_by="token",
        )
