"""BAPO: clip bounds that open until positive advantages contribute their share."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trustclip.constraints import gates
from trustclip.constraints.base import Method, NonNegative, Positive, Reduce, UpToOne, definition
from trustclip.constraints.batch import Surrogate, TokenBatch
from trustclip.constraints.masked import masked_sum, safe_exp


@definition
class BAPO(Method, statistics_over="micro_batch"):
    r"""BAPO: PPO's clip opens its bounds until positive advantages contribute their share.

    $$
    \rho(l, u) = \frac{\sum_{A_t > 0} p_t \min(w_t, u)\, A_t}
    {\sum_{A_t > 0} p_t \min(w_t, u)\, A_t + \sum_{A_t < 0} p_t \max(w_t, l)\, |A_t|} \ge \rho_0
    $$

    with $p$ the token's old probability. From $1 - \epsilon_{low}$ and $1 + \epsilon_{high}$ on,
    the upper bound rises in steps to its limit, and after it the lower one, until the condition
    holds or both are at their limits; a last step is as long as the limit allows. Negative samples
    tend to be longer and more, and a fixed upper bound cuts the rare positive tokens, which hold
    the entropy up.

    *What one update sees.* The tokens of a micro-batch over all ranks, at the current policy. There
    is no state: every micro-batch starts from the narrow bounds.

    *The lower bound.* In the condition as printed a higher $l$ makes negative tokens count more,
    not less, so raising it never meets the target: whenever the upper bound's range is not enough,
    both bounds go to their limits. What it does change is the gradient, which clipped negative
    tokens lose. The authors' repository moves the lower bound first, leaves $p$ out and adds a dual
    clip at 3; the algorithm here is the paper's.

    Args:
      target: $\rho_0$, share of the positive contribution, in (0, 1]. The authors' repository has
        0.5, with the same limits.
      low: $\epsilon_{low}$, initial offset below ratio 1, at most 1.
      low_limit: its last value, at most ``low``.
      low_step: step of the lower bound, 0.001 or more.
      high: $\epsilon_{high}$, initial offset above ratio 1.
      high_limit: its last value, at least ``high`` and at most 100.
      high_step: step of the upper bound, 0.001 or more.

    Raises:
      ValueError: a limit is on the wrong side of its initial value.

    Example:
      >>> import torch, trustclip as tc
      >>> w, a = torch.tensor([[1.6, 1.0, 1.0]]), torch.tensor([[1.0, -1.0, -1.0]])
      >>> old = torch.full((1, 3), 0.5).log()
      >>> batch = tc.TokenBatch(old + w.log(), old, a, torch.ones(1, 3, dtype=torch.bool))
      >>> method = tc.method("bapo")  # 1.35 / 3.35 is the first share of 0.4
      >>> [round(bound.exp().item(), 4) for bound in method.statistics(batch).values()]
      [0.6, 1.35]

    References:
      Xi et al., `BAPO: stabilizing off-policy reinforcement learning for LLMs via balanced policy
      optimization with adaptive clipping <https://arxiv.org/abs/2510.18927>`_, 2025, Algorithm 1
    """

    target: UpToOne = 0.4
    low: UpToOne = 0.4
    low_limit: NonNegative = 0.1
    low_step: Annotated[Positive, Field(ge=1e-3)] = 0.02
    high: Positive = 0.2
    high_limit: Annotated[Positive, Field(le=100)] = 2.0
    high_step: Annotated[Positive, Field(ge=1e-3)] = 0.05

    def __post_init__(self) -> None:
        if self.low_limit > self.low or self.high_limit < self.high:
            raise ValueError(
                "the bounds open upwards: `low_limit` must be at most `low` and `high_limit` at "
                f"least `high`, got {self.low_limit}, {self.low}, {self.high_limit}, {self.high}."
            )

    def statistics(self, batch: TokenBatch, reduce: Reduce = lambda x: x) -> dict[str, Tensor]:
        """Log of the bounds that meet the target, or of the last ones, over all ranks."""
        # Bounds of the ratio, in the order they are tried.
        lows = _steps(1 - self.low, 1 - self.low_limit, self.low_step)
        highs = _steps(1 + self.high, 1 + self.high_limit, self.high_step)
        w, a, finite = safe_exp(batch.log_ratio.detach()), batch.advantages, batch.finite
        signal = batch.logp_old.double().exp() * a.abs()  # [batch, time]
        positive, negative = finite & (a > 0), finite & (a < 0)
        sums = [masked_sum(signal * w.clamp(max=u), positive) for u in highs]
        sums += [masked_sum(signal * w.clamp(min=low), negative) for low in lows]
        plus, minus = reduce(torch.stack(sums)).split([len(highs), len(lows)])
        # The path: every upper bound with the first lower one, then the last with every lower one.
        plus = torch.cat([plus, plus[-1:].expand(len(lows) - 1)])
        minus = torch.cat([minus[:1].expand(len(highs)), minus[1:]])
        enough = plus >= self.target * (plus + minus)  # [highs + lows - 1]
        enough[-1] = True
        first = enough.double().argmax()  # of equal ones, the first
        path = [(lows[0], u) for u in highs] + [(low, highs[-1]) for low in lows[1:]]
        bounds = torch.tensor(path, dtype=torch.float64, device=w.device).log()
        low, high = bounds.index_select(0, first[None]).squeeze(0).unbind()
        return {"log_low": low, "log_high": high}

    def surrogate(self, batch: TokenBatch) -> Surrogate:
        statistics = batch.statistics or self.statistics(batch)
        return gates.interval(batch, (statistics["log_low"], statistics["log_high"]))


def _steps(first: float, last: float, step: float) -> list[float]:
    """From the first bound to the last in steps, the one that reaches it shortened if need be."""
    whole = math.floor((last - first) / step + 1e-9)
    bounds = [first + i * step for i in range(whole + 1)]
    return bounds if last - bounds[-1] < 1e-9 * step else [*bounds, last]
