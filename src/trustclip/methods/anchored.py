"""A method that measures from another policy than the proximal one."""

from dataclasses import replace
from typing import Literal

from torch import Tensor

from trustclip.constraints.base import AboveOne, Reduce, Trait, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip


@definition
class Anchored(Composite):
    r"""Anchored: any method measures its ratio and its constraint from the policy that sampled.

    $$
    J_t\big(\pi_\theta, \pi_{anchor}\big) \quad\text{in place of}\quad J_t(\pi_\theta, \pi_{old})
    $$

    *The sampler* (``"rollout"``). Engines that keep two policies, not three, train this way:
    prime-rl, Tinker, AReaL unless it recomputes log-probabilities, verl in bypass mode. The one
    ratio $\pi_\theta/\pi_{rollout}$ then holds the policy's own movement and the sampler's
    difference together, and the constraint bounds their sum; it acts at the first update too. A
    token to which the sampler gave no log-probability is measured from the proximal policy.
    ``dppo``, ``opsm``, ``trm`` and ``vespo`` have an ``anchor`` of their own, which is the same.

    *Between* (``"interpolated"``, A-3PO). Decoupled PPO takes the policy one update back for its
    anchor and recomputes its log-probabilities; here they are read off the line from the sampler
    to the current policy,

    $$
    \log\pi_{anchor} = \log\pi_{rollout} + \alpha\,(\log\pi_\theta - \log\pi_{rollout}),
    \qquad \alpha = \frac{d-1}{d}
    $$

    with $d$ the updates since the completion was sampled, at least 1, and $\pi_\theta$ taken as a
    constant. What is left of the log-ratio to constrain is $1/d$ of that to the sampler. The source
    weighs by $\pi_{anchor}/\pi_{rollout}$ as well: ``inner={"name": "tis", ...}``.

    Args:
      inner: the method: its name, or a mapping with ``name`` and hyper-parameters. It must not
        need an exact divergence or entropy: nobody keeps the sampler's distribution.
      anchor: ``"rollout"``; ``"interpolated"``, which needs ``batch.lag``; ``"old"`` leaves
        ``inner`` as it is.
      ceiling: largest ratio to the anchor: ``inner`` sees that of a token beyond it as the ceiling.
        1e4 in prime-rl, whose sampler is the anchor and gives rare tokens ratios of any size; None
        for no limit.

    Raises:
      ValueError: ``inner`` needs an exact divergence or entropy of the old policy, or statistics of
        the generation, of which the lag is not known yet.

    Example:
      >>> import torch, trustclip as tc
      >>> new, old, sampler = torch.tensor([[0.5]]), torch.tensor([[0.48]]), torch.tensor([[0.4]])
      >>> batch = tc.TokenBatch(new.log(), old.log(), torch.ones(1, 1), torch.ones(1, 1) > 0,
      ...                       logp_rollout=sampler.log())
      >>> tc.method("clip").surrogate(batch).kept  # ratio 1.04
      tensor([[True]])
      >>> tc.method("anchored", inner="clip").surrogate(batch).kept  # ratio 1.25
      tensor([[False]])

    References:
      Li et al., `A-3PO: accelerating asynchronous LLM training with staleness-aware proximal policy
      approximation <https://arxiv.org/abs/2512.06547>`_, 2025;
      Qi et al., `Rethinking the trust region in LLM reinforcement learning
      <https://arxiv.org/abs/2602.04879>`_, 2026, Section 5.2
    """

    inner: Part = Clip()
    anchor: Literal["rollout", "interpolated", "old"] = "rollout"
    ceiling: AboveOne | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.inner.requires:
            if self.anchor != "old" and name.startswith(("kl_", "top_k_", "entropy_old")):
                raise ValueError(
                    f"{self.inner.name!r} needs `{name}`, which no engine has from its anchor: "
                    "anchor a method of the token's own probability."
                )
        if self.anchor == "interpolated" and self.inner.statistics_over == "generation":
            raise ValueError(
                f"{self.inner.name!r} measures a generation before its first update, when the "
                f"anchor {self.anchor!r} is not known: use `anchor` 'rollout'."
            )

    @property
    def traits(self) -> Trait:
        if self.anchor == "old":
            return super().traits
        corrects = Trait.CORRECTS_SAMPLER if self.anchor == "rollout" else Trait(0)
        return super().traits | Trait.ACTS_ON_POLICY | corrects

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        return super().statistics(self._against_anchor(batch), reduce)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inner,) = self.surrogates(self._against_anchor(batch))
        return inner

    def _against_anchor(self, batch: TokenBatch) -> TokenBatch:
        """The batch with the anchor in place of the old policy, and no ratio above the ceiling."""
        if self.anchor != "interpolated":
            return batch.against(self.anchor).capped(self.ceiling)
        lag = batch.given("lag").clamp(min=1).to(batch.logp.dtype)  # [batch, time], as the others
        sampler = batch.against("rollout")
        offset = sampler.log_ratio.detach() * (lag - 1) / lag
        return replace(batch, logp_old=sampler.logp_old + offset).capped(self.ceiling)
