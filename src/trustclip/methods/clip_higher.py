"""DAPO's asymmetric clip."""

from trustclip.constraints import gates
from trustclip.constraints.base import ByToken, Interval, Offsets, Positive, UpToOne, definition
from trustclip.constraints.levels import Level


@definition
class ClipHigher(Offsets, Interval):
    r"""Clip-Higher: the ratio may rise further than it may fall (DAPO).

    $$
    1 - \epsilon_{low} \le w_t \le 1 + \epsilon_{high}
    $$

    Args:
      low: $\epsilon_{low}$, offset below ratio 1, at most 1.
      high: $\epsilon_{high}$, offset above ratio 1.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.
      level: ``"token"``, ``"prefix"``, ``"turn"`` or ``"sequence"``: where the ratio is measured.

    Example:
      With the bounds of ``atr`` at 0.07 it has the gradient of ``atr`` at 0.07:

      >>> import trustclip as tc
      >>> low, high = tc.interval("atr", delta=0.07)
      >>> twin = tc.method("clip_higher", low=1 - low, high=high - 1)
      >>> round(twin.low, 6), round(twin.high, 6)
      (0.329028, 0.422217)

    References:
      Yu et al., `DAPO: an open-source LLM reinforcement learning system at scale
      <https://arxiv.org/abs/2503.14476>`_, 2025
    """

    low: ByToken[UpToOne] = 0.2
    high: ByToken[Positive] = 0.28
    side: gates.Side = "outward"
    level: Level = "token"
