"""A method that measures from the policy that sampled, in place of the proximal one."""

from torch import Tensor

from trustclip.constraints.base import Method, Reduce, Trait, definition
from trustclip.constraints.batch import Anchor, Surrogate, TokenBatch
from trustclip.constraints.compose import Composite
from trustclip.constraints.registry import Part
from trustclip.methods.clip import Clip


@definition
class Anchored(Composite):
    r"""Anchored: any method, its ratio and its constraint measured from the policy that sampled.

    $$
    J_t\big(\pi_\theta, \pi_{rollout}\big) \quad\text{in place of}\quad J_t(\pi_\theta, \pi_{old})
    $$

    Engines that keep two policies, not three, train this way: prime-rl, Tinker, AReaL unless it
    recomputes log-probabilities, verl in bypass mode. The one ratio $\pi_\theta/\pi_{rollout}$ then
    holds the policy's own movement and the sampler's difference together, and the constraint
    bounds their sum; it acts at the first update too. A token to which the sampler gave no
    log-probability is measured from the proximal policy. ``dppo``, ``opsm``, ``trm`` and ``vespo``
    have an ``anchor`` of their own, which is the same.

    Args:
      inner: the method: its name, or a mapping with ``name`` and hyper-parameters. It must not
        need an exact divergence: nobody keeps the sampler's distribution.
      anchor: ``"rollout"``; ``"old"`` leaves ``inner`` as it is.

    Raises:
      ValueError: ``inner`` needs an exact divergence from the old policy.

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
      Qi et al., `Rethinking the trust region in LLM reinforcement learning
      <https://arxiv.org/abs/2602.04879>`_, 2026, Section 5.2
    """

    inner: Part = Clip()
    anchor: Anchor = "rollout"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.inner.requires:
            if self.anchor == "rollout" and name.startswith(("kl_", "top_k_")):
                raise ValueError(
                    f"{self.inner.name!r} needs `{name}`, which no engine has from the policy that "
                    "sampled: anchor a method of the token's own probability."
                )

    @property
    def parts(self) -> tuple[Method, ...]:
        return (self.inner,)

    @property
    def requires(self) -> tuple[str, ...]:
        sampler = ("logp_rollout",) if self.anchor == "rollout" else ()
        return tuple(dict.fromkeys((*super().requires, *sampler)))

    @property
    def traits(self) -> Trait:
        if self.anchor == "old":
            return super().traits
        return super().traits | Trait.ACTS_ON_POLICY | Trait.CORRECTS_SAMPLER

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        return super().statistics(batch.against(self.anchor), reduce)

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        (inside,) = self.surrogates(batch.against(self.anchor))
        return inside
