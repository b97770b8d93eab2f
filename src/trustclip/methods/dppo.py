"""DPPO: trust regions on the divergence of probabilities instead of the ratio."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trustclip.constraints import divergences, gates, intervals
from trustclip.constraints.base import (
    AboveOne,
    ByToken,
    Method,
    Positive,
    anchor_fields,
    definition,
    need_p_old,
    value,
)
from trustclip.constraints.batch import Anchor, LogBounds, Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp
from trustclip.constraints.twins import Twins, verl_bounds, verl_settings

Divergence = Literal["binary_tv", "binary_kl", "top_k_tv", "top_k_kl"]

#: Thresholds of the paper: total variation, and nats.
DELTA = {"tv": 0.15, "kl": 0.05}


@definition
class DPPO(Method):
    r"""DPPO: a token is dropped once its probability, not its ratio, has moved too far.

    $$
    D_t > \delta \ \text{and}\ (w_t - 1) A_t > 0: \ 0, \qquad\text{else}\quad
    c_t = \min(w_t, C) \text{, a constant}
    $$

    with $p, q$ the old and new probability of the token and

    * ``binary_tv``: $D = |q - p|$,
    * ``binary_kl``: $D = p \log\frac pq + (1-p)\log\frac{1-p}{1-q}$, the interval of
      ``trgppo`` without its union,
    * ``top_k_tv``, ``top_k_kl``: total variation and KL(old || new) over the old policy's k
      likeliest tokens, the sampled one, and all others as one. That is k + 1 tokens told apart also
      where the sampled one is among the likeliest; the released code has k there, and a
      divergence that is smaller by up to 5e-3.

    A ratio of 3 means from 30 to 90 % for one token and from 0.01 to 0.03 % for another: DPPO
    limits the change of the probability itself. The paper's anchor is the policy that sampled,
    ``anchor="rollout"``; verl's, and the default here, is the proximal policy. In verl raise
    ``clip_ratio_c``, or its default of 3 truncates the weights.

    Args:
      divergence: see above.
      delta: $\delta$; None is the paper's: 0.15 for total variation, 0.05 nats for KL.
      ceiling: $C$, truncation of the weight, above 1.
      anchor: ``"old"``, or ``"rollout"``: what is p, and what the ratio is relative to. The top-k
        forms have ``"old"`` only: what an engine sampled with, it does not keep.
      k: number of tokens of the top-k forms, used by the engine that computes them.

    Example:
      >>> import torch, trustclip as tc
      >>> p, q = torch.tensor([[0.5, 0.01]]), torch.tensor([[0.7, 0.03]])
      >>> batch = tc.TokenBatch(q.log(), p.log(), torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> tc.coefficient(tc.method("dppo"), batch)
      tensor([[0., 3.]])

    References:
      Qi et al., `Rethinking the trust region in LLM reinforcement learning
      <https://arxiv.org/abs/2602.04879>`_, 2026
    """

    divergence: Divergence = "binary_tv"
    delta: ByToken[Positive | None] = None
    ceiling: AboveOne = 20.0
    anchor: Anchor = "old"
    k: Annotated[int, Field(ge=1)] = 20

    def __post_init__(self) -> None:
        check(self.divergence, self.anchor)

    @property
    def requires(self) -> tuple[str, ...]:
        return fields_of(self.divergence, self.anchor)

    @property
    def twins(self) -> Twins:
        if self.divergence.startswith("top_k") or self.anchor == "rollout":
            return {}
        delta = value(self, "delta")
        limits = verl_bounds(delta, delta) | {"clip_ratio_c": self.ceiling}
        return {"verl": verl_settings(f"dppo_{self.divergence[-2:]}", **limits)}

    @property
    def source_delta(self) -> float:
        """The paper's threshold, in use where ``delta`` is None."""
        return DELTA[self.divergence[-2:]]

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        if self.divergence.startswith("top_k"):
            return super().log_interval(p_old)
        logp_old = need_p_old(p_old, self.name).log()
        if self.divergence == "binary_kl":
            return intervals.log_bernoulli_kl(logp_old, value(self, "delta"))
        return divergences.log_binary_tv_bounds(logp_old, value(self, "delta"))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        batch = batch.against(self.anchor)
        x = batch.log_ratio.detach()
        satisfied = divergence_of(self.divergence, batch) <= value(self, "delta")
        kept = gates.keeps_gradient(satisfied, x, batch.advantages, "outward")
        return gates.score_function(batch, safe_exp(x).clamp(max=self.ceiling), kept)


def check(divergence: Divergence, anchor: Anchor) -> None:
    """Raise ValueError for a divergence that cannot be measured against an anchor."""
    if divergence.startswith("top_k") and anchor == "rollout":
        raise ValueError("`anchor` 'rollout' needs a binary `divergence`.")


def fields_of(divergence: Divergence, anchor: Anchor) -> tuple[str, ...]:
    """Optional fields of `TokenBatch` that a divergence against an anchor needs."""
    return (divergence,) if divergence.startswith("top_k") else anchor_fields(anchor)


@torch.no_grad()
def divergence_of(divergence: Divergence, batch: TokenBatch) -> Tensor:
    """Divergence of each token's probability from its old one. Shape [batch, time]."""
    if divergence == "binary_tv":
        return divergences.binary_tv(batch.logp_old, batch.logp)
    if divergence == "binary_kl":
        return divergences.binary_kl_old_new(batch.logp_old, batch.logp)
    return batch.given(divergence)
