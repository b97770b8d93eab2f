"""LUSPO: GSPO with sequences weighted by their length."""

from typing import ClassVar

from trustclip.constraints import levels
from trustclip.constraints.base import Interval, Offsets, Positive, UpToOne, definition
from trustclip.constraints.twins import Twins, verl_settings


@definition
class LUSPO(Offsets, Interval):
    r"""LUSPO: GSPO's clip of the sequence is summed over tokens, so that length biases no answer.

    $$
    |y|\, \min\big(s A,\ \mathrm{clip}(s, 1-\epsilon_{low}, 1+\epsilon_{high}) A\big),
    \qquad s = \exp\Big(\frac1{|y|}\sum_t \log w_t\Big)
    $$

    GSPO averages over the tokens of a sequence, which gives a token of a long answer less weight.
    The factor $|y|$ undoes that, and is a matter of aggregation: each token's objective is
    ``gspo``'s, $s A$, and a sum over tokens makes it $|y|\, s A$. So aggregate with
    ``dr_grpo`` or ``dapo`` (in TRL ``loss_type="luspo"`` is the paper's loss exactly); under
    ``sequence_mean`` this is GSPO with wider bounds.

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.

    Example:
      >>> import torch, trustclip as tc
      >>> old = torch.full((1, 3), -2.0)
      >>> batch = tc.TokenBatch(old + torch.tensor([[0.5, -0.2, -0.297]]), old, torch.ones(1, 3),
      ...                       torch.ones(1, 3, dtype=torch.bool))
      >>> loss = tc.policy_loss(tc.method("luspo"), batch, "dr_grpo", max_length=1)
      >>> round(loss.value.item(), 4)  # three tokens, s = 1.001
      -3.003

    References:
      Liu et al., `Length-unbiased sequence policy optimization
      <https://arxiv.org/abs/2602.05261>`_, 2026
    """

    level: ClassVar[levels.Level] = "sequence"

    low: UpToOne = 2e-3
    high: Positive = 2.5e-3

    @property
    def twins(self) -> Twins:
        twins = super().twins
        twins["TRL"] |= {"loss_type": "luspo"}
        twins["verl"] |= verl_settings(loss_agg_mode="seq-mean-token-sum")
        return twins
