"""A penalty on the log-ratio, added to any method; written ``method + tc.penalty(...)``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import divergences, levels
from trustclip.constraints.base import Positive, Reduce, Trait, anchor_fields, definition, spans
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.masked import masked_sum, zero_masked
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip

#: Divergence of each name, from the log-ratio.
DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": Tensor.abs,
    "k1": lambda x: x,
    "k2": divergences.k2,
    "k3": divergences.k3,
    "k3_reverse": lambda x: divergences.k3(-x),
}


@definition
class Penalty(Composite):
    r"""Penalty: any method, whose tokens also pay for their divergence from a policy.

    $$
    J_t - \beta\, d(x_t), \qquad x_t = \log\frac{\pi_\theta(y_t)}{\pi_{anchor}(y_t)}
    $$

    with $J_t$ the objective of ``inner`` and $d$ one of

    * ``k2``: $x^2/2$, gradient $x$; Kimi k1.5's $\tfrac\tau2 x^2$ is $\beta = \tau$, and prime-rl's
      and Kimi K2.5's $\tau x^2$ is $\beta = 2\tau$,
    * ``k3``: $e^x - 1 - x$, which estimates KL(old || new); gradient $w - 1$,
    * ``k3_reverse``: $e^{-x} - 1 + x$, the form in which trainers write k3 of a reference model,
    * ``abs``: $|x|$, gradient $\mathrm{sign}(x)$.

    A gate only stops a token from moving further; a penalty pulls it back, on both sides, and does
    not scale with the advantage: tokens of advantage 0 pay too, and so do tokens that the gate of
    ``inner`` has cut, unless ``on`` says otherwise. Where a trainer weighs the tokens of a method
    to correct for its sampler, it weighs their price with them.

    *In the advantage* (``k1``). The gradient of $x$ is the constant 1, which holds no policy
    anywhere. So $x$ is no price on the objective. The old policy's, an estimate of KL(old ||
    reference), is taken from the advantage that ``inner`` sees, less its mean over all tokens:

    $$
    A_t + \beta\,(\bar k - k_t), \qquad k_t = \log\frac{\pi_{old}(y_t)}{\pi_{ref}(y_t)}
    $$

    A token that has become likelier than the average token has, against the reference, is
    rewarded less, and the mean advantage stays. The mean is over the generation and all ranks, or
    over what ``inner`` measures. Tinker's cookbook and ART compute $k$ with the sampler for the
    old policy: put ``anchored`` around the penalty.

    In Python ``tc.method("clip") + tc.penalty("k2", 1e-3)`` is this method.

    Args:
      inner: the method: its name, or a mapping with ``name`` and hyper-parameters.
      divergence: $d$.
      beta: $\beta$, price of a nat.
      anchor: ``"old"``, ``"rollout"``, the policy that sampled, or ``"ref"``, the reference model;
        of ``k1`` always ``"ref"``.
      level: ``"token"``; ``"sequence"`` takes the sum of $x$ over the sequence for $x$, and
        charges each of its $T$ tokens $d/T$, so that the sequence pays $\beta d$ (Kimi k1.5).
      on: which tokens pay: ``"all"``, those that ``inner`` has ``"kept"``, or those it has
        ``"cut"``, which makes of its gate a rollback.

    Raises:
      ValueError: ``k1`` with another ``anchor``, ``level`` or ``on`` than its own.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, 0.1]]), old, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> method = tc.method("clip") + tc.penalty("k2", 0.1)
      >>> tc.coefficient(method, batch)  # cut: -0.1 x; kept: w - 0.1 x
      tensor([[-0.0500,  1.0952]])
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool),
      ...                       logp_ref=old - torch.tensor([[0.5, 0.1]]))
      >>> method = tc.method("clip") + tc.penalty("k1", 0.1, anchor="ref")
      >>> tc.coefficient(method, batch)  # 1 + 0.1 (0.3 - 0.5), 1 + 0.1 (0.3 - 0.1)
      tensor([[0.9800, 1.0200]])

    References:
      Kimi Team, `Kimi k1.5: scaling reinforcement learning with LLMs
      <https://arxiv.org/abs/2501.12599>`_, 2025;
      Prime Intellect, `prime-rl <https://github.com/PrimeIntellect-ai/prime-rl>`_, 2026;
      ``k1``: Thinking Machines, `tinker-cookbook
      <https://github.com/thinking-machines-lab/tinker-cookbook>`_ (``incorporate_kl_penalty``),
      2025; OpenPipe, `ART <https://github.com/OpenPipe/ART/pull/562>`_, 2026
    """

    only_adds = True

    inner: Part = Clip()
    divergence: Literal["abs", "k1", "k2", "k3", "k3_reverse"] = "k2"
    beta: Positive = 1e-3
    anchor: Literal["old", "rollout", "ref"] = "old"
    level: Literal["token", "sequence"] = "token"
    on: Literal["all", "kept", "cut"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.anchor, self.level, self.on
        if self._in_advantage and own != ("ref", "token", "all"):
            raise ValueError(
                "`k1` changes the advantage of every token by its distance from the reference "
                f"model: it needs `anchor` 'ref', `level` 'token' and `on` 'all', got {own}."
            )

    @property
    def _in_advantage(self) -> bool:
        return self.divergence == "k1"

    @property
    def requires(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().requires, *anchor_fields(self.anchor))))

    @property
    def traits(self) -> Trait:
        own = Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES
        # Any other policy is another one from the first update on.
        early = Trait(0) if self.anchor == "old" else Trait.ACTS_ON_POLICY
        return super().traits | own | early | spans(self.level)

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self.inner.log_interval(p_old)

    @property
    def statistics_over(self) -> Literal["generation", "micro_batch"] | None:
        return super().statistics_over or ("generation" if self._in_advantage else None)

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Those of ``inner``, which sees the advantages that have paid, and the mean of k1."""
        if not self._in_advantage:
            return super().statistics(batch, reduce)
        k = batch.logp_old - batch.given("logp_ref")  # [batch, time]
        total, count = reduce(torch.stack([masked_sum(n, batch.finite) for n in (k, k * 0 + 1)]))
        own = {"mean_k1": total / count.clamp(min=1)}
        return own | super().statistics(self._paid(replace(batch, statistics=own)), reduce)

    def _paid(self, batch: TokenBatch) -> TokenBatch:
        """The batch with the advantages that have paid for k1."""
        statistics = batch.statistics or self.statistics(batch)
        k = batch.logp_old - batch.given("logp_ref")  # [batch, time]
        gain = zero_masked(self.beta * (statistics["mean_k1"] - k), batch.mask)
        return replace(batch, advantages=batch.advantages + gain)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(self._paid(batch) if self._in_advantage else batch)
        x = batch.against(self.anchor).log_ratio  # [batch, time], as everything here
        x = levels.reduce(self.level, "sum", x, batch.mask)
        price = self.beta * DIVERGENCES[self.divergence](x)
        if self.level == "sequence":
            price = price / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
        payers = {"all": batch.mask, "kept": inner.kept, "cut": batch.mask & ~inner.kept}
        price = zero_masked(price, payers[self.on])
        total = price.detach() + inner.extras.get("penalty", 0)
        objective = inner.objective if self._in_advantage else inner.objective - price
        return Surrogate(objective, inner.kept, {**inner.extras, "penalty": total})
