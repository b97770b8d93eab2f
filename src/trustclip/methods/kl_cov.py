"""KL-Cov: a penalty on the few tokens whose covariance is highest."""

from torch import Tensor

from trustclip.constraints import gates
from trustclip.constraints.base import Method, Positive, Reduce, Trait, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import safe_exp, zero_masked
from trustclip.constraints.selection import nth_largest, uniform
from trustclip.methods.clip_cov import covariance_of, means


@definition
class KLCov(
    Method,
    requires=("keys",),
    traits=Trait.MOVES_WITHOUT_ADVANTAGE | Trait.REVERSES,
    statistics_over="generation",
):
    r"""KL-Cov: the tokens of highest covariance pay a KL penalty, and no ratio is clipped.

    $$
    J_t = w_t A_t - \beta\, |\log w_t| \ \text{for the } kN \text{ tokens of largest }
    \mathrm{cov}_t = (A_t - \bar A)(\log\pi_\theta(y_t) - \overline{\log\pi_\theta}),
    \qquad J_t = w_t A_t \ \text{for the rest}
    $$

    The same tokens that ``clip_cov`` draws from; here they are held back instead of dropped. The
    absolute log-ratio serves as the KL divergence in the released code, which we follow: its
    gradient is $\beta\,\mathrm{sign}(\log w_t)$, and 0 at ratio 1.

    *Selection.* On a whole batch (`policy_loss` without ``statistics``)
    $\max(\lfloor kN \rfloor, 1)$ tokens, as in the released code; in an engine the means and
    the covariance of the last token selected are measured over the whole generation and all ranks,
    at the old policy, so micro-batches of any size agree. Tokens that the policy is sure of tie by
    the thousand ($\log\pi = 0$); of a tie, a hash of ``seed`` and ``batch.keys`` selects the
    share that is due. A covariance of 0 or less is never selected.

    Args:
      share: $k$, share of all tokens, in (0, 1]. 2e-3 in the paper for 7B models, 2e-4 for
        32B and in verl.
      beta: $\beta$, price of a nat. 1 in the paper; 0.1 in verl's configuration.
      seed: seed of the choice among equals.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.tensor([[-0.1, -0.05, -3.0, -6.0, -0.2, -1.0]])
      >>> A = torch.tensor([[0.875, 0.875, 0.875, -0.9, -0.9, -0.9]])
      >>> batch = tc.TokenBatch(old - 0.01, old, A, torch.ones(1, 6, dtype=torch.bool),
      ...                       keys=torch.arange(6)[None])
      >>> tc.coefficient(tc.method("kl_cov"), batch)  # the fourth: -0.9 w + 1
      tensor([[ 0.8663,  0.8663,  0.8663,  0.1090, -0.8910, -0.8910]])

    References:
      Cui et al., `The entropy mechanism of reinforcement learning for reasoning language models
      <https://arxiv.org/abs/2505.22617>`_, 2025
    """

    share: UpToOne = 2e-3
    beta: Positive = 1.0
    seed: int = 0

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Means of advantages and log-probabilities; least covariance selected, and share of it."""
        statistics = means(batch, reduce)
        number = (self.share * reduce(batch.finite.sum().double())).floor().clamp(min=1)
        covariance = covariance_of(batch, statistics)[batch.finite]  # [tokens]
        least, share = nth_largest(covariance, number, reduce)
        return {**statistics, "least_covariance": least, "share_of_least": share}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        covariance = covariance_of(batch, statistics).float()
        least = statistics["least_covariance"]
        due = uniform(batch.given("keys"), self.seed) < statistics["share_of_least"]
        selected = (covariance > least) | ((covariance == least) & due)
        selected = selected & (covariance > 0) & batch.mask
        x = batch.log_ratio
        gain = gates.soft(batch, safe_exp(x))
        price = zero_masked(self.beta * x.abs(), selected)
        return Surrogate(gain.objective - price, gain.kept, {"selected": selected})
