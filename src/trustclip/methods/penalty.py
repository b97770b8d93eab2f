"""A penalty on the log-ratio, added to any method; written ``method + tc.penalty(...)``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from trustclip.constraints import divergences, levels
from trustclip.constraints.base import Positive, Reduce, Trait, definition, spans
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.masked import masked_sum, zero_masked
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip

#: Divergence of each name, from the log-ratio; ``kl_old_new`` comes with the batch.
DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": Tensor.abs,
    "k1": lambda x: x,
    "k2": divergences.k2,
    "k3": divergences.k3,
    "k3_reverse": lambda x: divergences.k3(-x),
}
#: What the other settings must be under a divergence.
_FIXED = {
    "k1": {"anchor": "ref", "level": "token", "on": "all"},
    "kl_old_new": {"anchor": "old", "level": "token"},
}


@definition
class Penalty(Composite):
    r"""Penalty: the tokens of any method also pay for their divergence from a policy.

    $$
    J_t - \beta\, d(x_t), \qquad x_t = \log\frac{\pi_\theta(y_t)}{\pi_{anchor}(y_t)}
    $$

    with $J_t$ the objective of ``inner`` and $d$ one of

    * ``k2``: $x^2/2$, gradient $x$; Kimi k1.5's $\tfrac\tau2 x^2$ is $\beta = \tau$, and prime-rl's
      and Kimi K2.5's $\tau x^2$ is $\beta = 2\tau$,
    * ``k3``: $e^x - 1 - x$, which estimates KL(old || new); gradient $w - 1$,
    * ``k3_reverse``: $e^{-x} - 1 + x$, the form in which trainers write k3 of a reference model,
    * ``abs``: $|x|$, gradient $\mathrm{sign}(x)$,
    * ``kl_old_new``: KL(old || new) over the vocabulary; that of the batch must carry its graph.

    A gate only stops a token from moving further; a penalty pulls it back, on both sides, and does
    not scale with the advantage: tokens of advantage 0 pay too, and so do tokens that the gate of
    ``inner`` has cut, unless ``on`` says otherwise. Where a trainer weighs the tokens of a method
    to correct for its sampler, it weighs their price with them.

    *In the advantage* (``k1``). The gradient of $x$ is the constant 1, which holds no policy
    anywhere, so $x$ is no price on the objective. Instead $k_t$, the old policy's log-ratio and an
    estimate of KL(old || reference), is taken from the advantage that ``inner`` sees, less its mean
    over all tokens:

    $$
    A_t + \beta\,(\bar k - k_t), \qquad k_t = \log\frac{\pi_{old}(y_t)}{\pi_{ref}(y_t)}
    $$

    A token whose $k_t$ is above the mean is rewarded less, and the mean advantage stays. The mean
    is over the generation and all ranks, or over what ``inner`` measures. Tinker's cookbook and ART
    compute $k$ with the sampler for the old policy: put ``anchored`` around the penalty.

    In Python ``tc.method("clip") + tc.penalty("k2", 1e-3)`` is this method. The name
    ``ppo_penalty`` is PPO's: ``importance_sampling`` with ``k3`` at a price of 1, one of the
    paper's 0.3, 1, 3 and 10, or with ``kl_old_new``. The paper doubles or halves $\beta$ between
    generations to hold the divergence at a target. Here a controller does, whose metric falls as
    the price rises: ``beta: {controller: target, metric: k3, target: 0.01, response: falls}``.

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
      ValueError: ``k1`` or ``kl_old_new`` with an ``anchor``, a ``level`` or ``on`` it cannot have.

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
      Schulman et al., `Proximal policy optimization algorithms
      <https://arxiv.org/abs/1707.06347>`_, 2017, Section 4;
      Kimi Team, `Kimi k1.5: scaling reinforcement learning with LLMs
      <https://arxiv.org/abs/2501.12599>`_, 2025;
      Prime Intellect, `prime-rl <https://github.com/PrimeIntellect-ai/prime-rl>`_, 2026;
      ``k1``: Thinking Machines, `tinker-cookbook
      <https://github.com/thinking-machines-lab/tinker-cookbook>`_ (``incorporate_kl_penalty``),
      2025; OpenPipe, `ART <https://github.com/OpenPipe/ART/pull/562>`_, 2026
    """

    only_adds = True

    inner: Part = Clip()
    divergence: Literal["abs", "k1", "k2", "k3", "k3_reverse", "kl_old_new"] = "k2"
    beta: Positive = 1e-3
    anchor: Literal["old", "rollout", "ref"] = "old"
    level: Literal["token", "sequence"] = "token"
    on: Literal["all", "kept", "cut"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in _FIXED.get(self.divergence, {}).items():
            if (given := getattr(self, name)) != value:
                raise ValueError(f"{self.divergence!r} needs `{name}` {value!r}, got {given!r}.")

    @property
    def requires(self) -> tuple[str, ...]:
        exact = ("kl_old_new",) if self.divergence == "kl_old_new" else ()
        return tuple(dict.fromkeys((*super().requires, *exact)))

    @property
    def traits(self) -> Trait:
        own = Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES
        # Any other policy is another one from the first update on.
        early = Trait(0) if self.anchor == "old" else Trait.ACTS_ON_POLICY
        exact = Trait.NEEDS_KL_GRADIENT if self.divergence == "kl_old_new" else Trait(0)
        return super().traits | own | early | exact | spans(self.level)

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self.inner.log_interval(p_old)

    @property
    def statistics_over(self) -> Literal["generation", "micro_batch"] | None:
        return super().statistics_over or ("generation" if self.divergence == "k1" else None)

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Those of ``inner``, which sees the advantages that have paid, and the mean of k1."""
        if self.divergence != "k1":
            return super().statistics(batch, reduce)
        k = _k1(batch)
        total, count = reduce(torch.stack([masked_sum(n, batch.finite) for n in (k, k * 0 + 1)]))
        own = {"mean_k1": total / count.clamp(min=1)}
        return own | super().statistics(self.of_part(0, replace(batch, statistics=own)), reduce)

    def of_part(self, i: int, batch: TokenBatch) -> TokenBatch:
        """The batch as ``inner`` reads it: its advantages have paid for k1, if it is that."""
        part = super().of_part(i, batch)
        if self.divergence != "k1":
            return part
        mean = (batch.statistics or self.statistics(batch))["mean_k1"]
        return replace(part, advantages=batch.advantages + self.beta * (mean - _k1(batch)))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(batch)
        if self.divergence == "kl_old_new":
            price = self.beta * batch.given("kl_old_new")  # [batch, time], as everything here
        else:
            x = levels.reduce(self.level, "sum", batch.against(self.anchor).log_ratio, batch.mask)
            price = self.beta * DIVERGENCES[self.divergence](x)
        if self.level == "sequence":
            price = price / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
        payers = {"all": batch.mask, "kept": inner.kept, "cut": batch.mask & ~inner.kept}
        price = zero_masked(price, payers[self.on])
        total = price.detach() + inner.extras.get("penalty", 0)
        charged = inner.objective if self.divergence == "k1" else inner.objective - price
        return Surrogate(charged, inner.kept, {**inner.extras, "penalty": total})


def _k1(batch: TokenBatch) -> Tensor:
    """log(old / reference) of the sampled token, nats. Shape [batch, time]."""
    return batch.logp_old - batch.given("logp_ref")
