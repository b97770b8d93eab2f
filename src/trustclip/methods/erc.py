"""ERC: drop the tokens at whose position the entropy has changed too much."""

from torch import Tensor

from trustclip.constraints.base import Positive, Trait, UpToOne, definition
from trustclip.constraints.batch import TokenBatch
from trustclip.constraints.compose import Weighted
from trustclip.constraints.registry import Part
from trustclip.methods.clip_higher import ClipHigher

#: Both entropies get this much more (nats), as in the source: without any choice the ratio is 1.
_LEAST = 1e-8


@definition
class ERC(Weighted):
    r"""ERC: any method drops the tokens at whose position the entropy has changed too much.

    $$
    J_t \cdot \mathbf 1\Big[1 - \epsilon_{low} < \frac{H_t(\pi_\theta)}{H_t(\pi_{old})} <
    1 + \epsilon_{high}\Big]
    $$

    with $J_t$ the objective of ``inner`` and $H_t$ the entropy over the vocabulary at the token's
    position. The ratio of the sampled token says nothing about the others, which can drift while it
    stays; the entropy moves with all of them. In both directions, whatever the advantage. Sharp
    where the policy is nearly sure: an entropy of 0.001 nats that becomes 0.0011 is out of range,
    and the paper reports 20 % of the tokens dropped.

    The entropy of the old policy takes a forward pass. TRL's engine uses the one that scores the
    samples; with trustclip's own decoder, which makes that pass unnecessary, it costs one more per
    generation.

    Args:
      inner: the method to constrain: its name, or a mapping with ``name`` and hyper-parameters. The
        paper's are DAPO's clip (the default here) and GPPO, ``{name: ce_gppo, beta_low: 1.0}``,
        both with a dual clip at 10.
      low: $\epsilon_{low}$, offset below entropy ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above entropy ratio 1.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -1.0)
      >>> batch = tc.TokenBatch(old, old, torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool),
      ...                       entropy=torch.tensor([[0.51, 0.40, 0.0]]),
      ...                       entropy_old=torch.tensor([[0.50, 0.50, 0.0]]))
      >>> tc.coefficient(tc.method("erc"), batch)
      tensor([[1., 0., 1.]])

    References:
      Su et al., `Entropy ratio clipping as a soft global constraint for stable reinforcement
      learning <https://arxiv.org/abs/2512.05591>`_, 2025; `released code
      <https://github.com/Kwai-Klear/ERC>`_
    """

    also_requires = ("entropy", "entropy_old")

    inner: Part = ClipHigher()
    low: UpToOne = 0.05
    high: Positive = 0.05

    @property
    def traits(self) -> Trait:
        return super().traits | Trait.CUTS

    def weight(self, batch: TokenBatch) -> Tensor:
        now, before = batch.given("entropy") + _LEAST, batch.given("entropy_old") + _LEAST
        outside = (now <= (1 - self.low) * before) | (now >= (1 + self.high) * before)
        return (~outside).to(now.dtype)
