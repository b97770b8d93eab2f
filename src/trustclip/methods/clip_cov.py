"""Clip-Cov: drop a few of the tokens whose covariance of advantage and log-probability is high."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trustclip.constraints import gates
from trustclip.constraints.base import Number, Offsets, Positive, Reduce, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import masked_sum
from trustclip.constraints.selection import uniform


@definition
class ClipCov(
    Offsets,
    requires=("keys",),
    traits=Trait.CUTS | Trait.ACTS_ON_POLICY,
    statistics_over="generation",
):
    r"""Clip-Cov: a clip, and a random share of high-covariance tokens loses its gradient.

    $$
    \mathrm{cov}_t = (A_t - \bar A)(\log\pi_\theta(y_t) - \overline{\log\pi_\theta}), \qquad
    \Pr(\text{drop } t) = r\,N / N_c \ \text{where}\ \omega_{low} < \mathrm{cov}_t <
    \omega_{high}
    $$

    with $N$ tokens, of which $N_c$ are candidates (covariance in range, inside the
    clip). Such tokens carry most of the fall in entropy.

    *Selection.* Each candidate is dropped on its own, by a hash of ``seed`` and ``batch.keys``
    (which an engine derives from step, sample and position), so ranks, micro-batch splits and
    reruns agree. The expected share of
    dropped tokens is ``share`` whatever the batch size; the released code drops
    $\max(\lfloor rN \rfloor, 1)$ of every micro-batch, which at a thousand tokens is five
    times ``share``.

    *Exact or not.* On a whole batch (`policy_loss` without ``statistics``) the means, the
    covariance and $N_c$ are exactly those of the formula. An engine that sees micro-batches
    measures $\bar A$ (exact), the mean log-probability and $N_c / N$ (both at the old
    policy) over the whole generation batch and all ranks; only the token's own log-probability is
    then the current one.

    With ``A = R - mean`` and binary rewards (Dr. GRPO) advantages stay below 0.875 at 8 answers,
    and positive ones reach a covariance of 1 only in very uncertain text; scale ``cov_low`` and
    ``cov_high`` with the advantages.

    Args:
      low: clip's offset below ratio 1; 1 (no lower bound) in the paper's script.
      high: clip's offset above ratio 1; 1 in the paper's script.
      share: $r$, share of all tokens to drop, in (0, 1].
      cov_low: $\omega_{low}$.
      cov_high: $\omega_{high}$, above ``cov_low``.
      seed: seed of the selection.

    Example:
      >>> import torch, trustclip as tc
      >>> logp = torch.tensor([[-0.1, -0.05, -3.0, -6.0, -0.2, -1.0]])
      >>> A = torch.tensor([[0.875, 0.875, 0.875, -0.9, -0.9, -0.9]])
      >>> batch = tc.TokenBatch(logp, logp, A, torch.ones(1, 6, dtype=torch.bool),
      ...                       keys=torch.arange(6)[None])
      >>> tc.method("clip_cov").covariance(batch)
      tensor([[ 1.4422,  1.4866, -1.1316,  3.7941, -1.3534, -0.6434]])

    References:
      Cui et al., `The entropy mechanism of reinforcement learning for reasoning language models
      <https://arxiv.org/abs/2505.22617>`_, 2025
    """

    low: UpToOne = 1.0
    high: Positive = 1.0
    share: UpToOne = 2e-4
    cov_low: Number = 1.0
    cov_high: Number = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"`cov_low` must be below `cov_high`, got {self.cov_low} and {self.cov_high}."
            )

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Means of the advantages and log-probabilities, and the share of candidates."""
        statistics = means(batch, reduce)
        candidates = self._candidates(batch, statistics)
        counts = reduce(torch.stack([candidates.sum(), batch.finite.sum()]).to(batch.logp.dtype))
        return {**statistics, "candidate_share": counts[0] / counts[1].clamp(min=1)}

    def covariance(self, batch: TokenBatch) -> Tensor:
        """Covariance of each token, nats, without gradient. Shape [batch, time]."""
        return covariance_of(batch, batch.statistics or self.statistics(batch))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        probability = self.share / statistics["candidate_share"].clamp(min=self.share)
        selected = uniform(batch.given("keys"), self.seed) < probability
        dropped = self._candidates(batch, statistics) & selected
        return gates.interval(batch, self.log_interval(), dropped=dropped)

    def _candidates(self, batch: TokenBatch, statistics: Mapping[str, Tensor]) -> Tensor:
        covariance = covariance_of(batch, statistics)
        in_range = (self.cov_low < covariance) & (covariance < self.cov_high)
        return in_range & gates.interval(batch, self.log_interval()).kept


def means(batch: TokenBatch, reduce: Reduce) -> dict[str, Tensor]:
    """Means of the advantages and of the log-probabilities, over all ranks."""
    logp, finite = batch.logp.detach(), batch.finite
    tokens = finite.sum().to(logp.dtype)
    sums = torch.stack([masked_sum(batch.advantages, finite), masked_sum(logp, finite), tokens])
    advantage, logp_sum, count = reduce(sums).unbind()
    count = count.clamp(min=1)
    return {"mean_advantage": advantage / count, "mean_logp": logp_sum / count}


def covariance_of(batch: TokenBatch, statistics: Mapping[str, Tensor]) -> Tensor:
    """Product of each token's deviations from the `means`, without gradient. [batch, time]."""
    centred = batch.advantages - statistics["mean_advantage"]
    return centred * (batch.logp.detach() - statistics["mean_logp"])
