"""VESPO: a smooth weight of the whole sequence's ratio."""

import math
from typing import ClassVar

from trustclip.constraints import gates, levels
from trustclip.constraints.base import Method, Positive, Trait, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.masked import choose, safe_expm1
from trustclip.constraints.twins import NEVER, Twins

#: Clamps of the released code, nats: of a token's log-ratio, and of the sequence's.
TOKEN_LIMIT = 20.0
SEQUENCE_LIMITS = (math.log(1e-8), 20.0)


@definition
class VESPO(Method, traits=Trait(0)):
    r"""VESPO: every token is weighted by a gamma-shaped function of its sequence's ratio.

    $$
    c_t = W^k e^{\lambda (1 - W)}, \qquad W = \prod_s w_s
    $$

    a constant, 1 on-policy, that goes to 0 at both ends and peaks at $k/\lambda$; k and
    $\lambda$ depend on the sign of A. $W$ is the ratio of the whole sequence, not
    normalised by its length, so long sequences leave the useful range after small updates. The
    released code clamps a token's log-ratio to 20 nats and the sequence's to [log 1e-8, 20], and
    runs the defaults below (its docstring has other ones); we follow the code.

    Args:
      k_positive: $k$ where A >= 0.
      lambda_positive: $\lambda$ where A >= 0.
      k_negative: $k$ where A < 0.
      lambda_negative: $\lambda$ where A < 0.
      anchor: ``"old"``, or ``"rollout"``: measure W against the policy that sampled, which folds
        the correction for the sampling engine into it. TRL multiplies in its truncated weights.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, 3.0]]).log(), old, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("vespo"), batch)  # W = 1.5
      tensor([[0.5020, 0.5020]])

    References:
      Shen et al., `VESPO: variational sequence-level soft policy optimization
      <https://arxiv.org/abs/2602.10693>`_, 2026
    """

    level: ClassVar[levels.Level] = "sequence"

    k_positive: Positive = 2.0
    lambda_positive: Positive = 3.0
    k_negative: Positive = 3.0
    lambda_negative: Positive = 2.0
    anchor: Anchor = "old"

    @property
    def twins(self) -> Twins:
        positive = {"vespo_k_pos": self.k_positive, "vespo_lambda_pos": self.lambda_positive}
        negative = {"vespo_k_neg": self.k_negative, "vespo_lambda_neg": self.lambda_negative}
        twin = {"loss_type": "vespo", **positive, **negative}
        if self.anchor == "rollout":  # the correction is a factor of W; TRL always truncates it
            prefix = "vllm_importance_sampling"
            twin |= {"use_vllm": True, f"{prefix}_mode": "token_truncate"}
            twin |= {f"{prefix}_clip_max": NEVER}
        return {"TRL": twin}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        x = batch.against(self.anchor).log_ratio.detach().clamp(-TOKEN_LIMIT, TOKEN_LIMIT)
        log_w = levels.reduce("sequence", "sum", x, batch.mask).clamp(*SEQUENCE_LIMITS)
        positive = batch.advantages >= 0
        k = choose(positive, self.k_positive, self.k_negative, x)
        rate = choose(positive, self.lambda_positive, self.lambda_negative, x)
        return gates.score_function(batch, (k * log_w - rate * safe_expm1(log_w)).exp())
