"""ABC-GRPO: a separate bound in each quadrant."""

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import Method, Positive, UpToOne, definition
from trustclip.constraints.batch import LogBounds, Surrogate, TokenBatch
from trustclip.constraints.twins import Twins, clip_twins


@definition
class ABCGRPO(Method):
    r"""ABC-GRPO: the ratio is bounded on both sides, by four offsets that depend on the sign of A.

    $$
    A_t > 0: \ 1 - \epsilon_2 \le w_t \le 1 + \epsilon_1, \qquad
    A_t < 0: \ 1 - \epsilon_4 \le w_t \le 1 + \epsilon_3, \qquad\text{else no gradient}
    $$

    A clip without PPO's ``min``: a step back towards ratio 1 is cut too. What that adds to PPO is
    mostly $\epsilon_3$, the bound on tokens of negative advantage that have become likelier, whose
    weight PPO does not bound; ``dual_clip`` is the case $\epsilon_2 = 1$, $\epsilon_3 = c - 1$.

    The numbering is the paper's (Eq. 8), and so is the default of 0.2 for all four (Section 5).

    Args:
      positive_high: $\epsilon_1$, offset above ratio 1 where A > 0.
      positive_low: $\epsilon_2$, offset below it where A > 0; 1 leaves that side open.
      negative_low: $\epsilon_4$, offset below it where A < 0; 1 leaves that side open.
      negative_high: $\epsilon_3$, offset above it where A < 0.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 4), -3.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[1.5, 0.5, 0.5, 1.5]]).log(), old,
      ...                       torch.tensor([[1.0, 1.0, -1.0, -1.0]]),
      ...                       torch.ones(1, 4, dtype=torch.bool))
      >>> tc.method("abc_grpo", positive_low=0.6, negative_high=0.6).surrogate(batch).kept
      tensor([[False,  True, False,  True]])

    References:
      Liu and Chen, `Adaptive-boundary-clipping GRPO <https://arxiv.org/abs/2601.03895>`_, 2026
    """

    positive_high: Positive = 0.2
    positive_low: UpToOne = 0.2
    negative_low: UpToOne = 0.2
    negative_high: Positive = 0.2

    @property
    def twins(self) -> Twins:
        if self.positive_low < 1:  # no trainer cuts a step back towards ratio 1 where A > 0
            return {}
        bounds = intervals.log_offsets(self.negative_low, self.positive_high)
        return clip_twins(bounds, ceiling=1 + self.negative_high)

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        low = min(self.positive_low, self.negative_low)
        return intervals.log_offsets(low, min(self.positive_high, self.negative_high))

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        positive = intervals.log_offsets(self.positive_low, self.positive_high)
        negative = intervals.log_offsets(self.negative_low, self.negative_high)
        return gates.by_sign(batch, positive, negative)
