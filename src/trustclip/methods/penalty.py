"""A penalty on the log-ratio, added to any method; written ``method + tc.penalty(...)``."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from trustclip.constraints import divergences, levels
from trustclip.constraints.base import Positive, Trait, anchor_fields, definition, spans
from trustclip.constraints.batch import Anchor, LogBounds, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.masked import zero_masked
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip

#: Divergence of each name, from the log-ratio.
DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": Tensor.abs,
    "k2": divergences.k2,
    "k3": divergences.k3,
    "k3_reverse": lambda x: divergences.k3(-x),
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
    * ``abs``: $|x|$, gradient $\mathrm{sign}(x)$.

    A gate only stops a token from moving further; a penalty pulls it back, on both sides, and does
    not scale with the advantage: tokens of advantage 0 pay too, and so do tokens that the gate of
    ``inner`` has cut, unless ``on`` says otherwise. There is no ``k1``, $\mp x$: its gradient is
    the constant $\mp\beta$, which holds no policy anywhere. Where a trainer weighs the tokens of a
    method to correct for its sampler, it weighs their price with them.

    In Python ``tc.method("clip") + tc.penalty("k2", 1e-3)`` is this method.

    Args:
      inner: the method: its name, or a mapping with ``name`` and hyper-parameters.
      divergence: $d$.
      beta: $\beta$, price of a nat.
      anchor: ``"old"``, or ``"rollout"``: the policy that sampled.
      level: ``"token"``; ``"sequence"`` takes the sum of $x$ over the sequence for $x$, and
        charges each of its $T$ tokens $d/T$, so that the sequence pays $\beta d$ (Kimi k1.5).
      on: which tokens pay: ``"all"``, those that ``inner`` has ``"kept"``, or those it has
        ``"cut"``, which makes of its gate a rollback.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 2), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, 0.1]]), old, torch.ones(1, 2),
      ...                       torch.ones(1, 2, dtype=torch.bool))
      >>> method = tc.method("clip") + tc.penalty("k2", 0.1)
      >>> tc.coefficient(method, batch)  # cut: -0.1 x; kept: w - 0.1 x
      tensor([[-0.0500,  1.0952]])

    References:
      Kimi Team, `Kimi k1.5: scaling reinforcement learning with LLMs
      <https://arxiv.org/abs/2501.12599>`_, 2025;
      Prime Intellect, `prime-rl <https://github.com/PrimeIntellect-ai/prime-rl>`_, 2026
    """

    only_adds = True

    inner: Part = Clip()
    divergence: Literal["abs", "k2", "k3", "k3_reverse"] = "k2"
    beta: Positive = 1e-3
    anchor: Anchor = "old"
    level: Literal["token", "sequence"] = "token"
    on: Literal["all", "kept", "cut"] = "all"

    @property
    def requires(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().requires, *anchor_fields(self.anchor))))

    @property
    def traits(self) -> Trait:
        own = Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES
        # The sampler's policy is another one from the first update on.
        early = Trait.ACTS_ON_POLICY if self.anchor == "rollout" else Trait(0)
        return super().traits | own | early | spans(self.level)

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return self.inner.log_interval(p_old)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(batch)
        x = batch.against(self.anchor).log_ratio  # [batch, time], as everything here
        x = levels.reduce(self.level, "sum", x, batch.mask)
        price = self.beta * DIVERGENCES[self.divergence](x)
        if self.level == "sequence":
            price = price / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
        payers = {"all": batch.mask, "kept": inner.kept, "cut": batch.mask & ~inner.kept}
        price = zero_masked(price, payers[self.on])
        total = price.detach() + inner.extras.get("penalty", 0)
        return Surrogate(inner.objective - price, inner.kept, {**inner.extras, "penalty": total})
