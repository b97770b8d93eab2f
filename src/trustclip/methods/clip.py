"""PPO's clip, the default of GRPO."""

from torch import Tensor

from trustclip.constraints import gates, intervals
from trustclip.constraints.base import ByToken, Interval, UpToOne, definition
from trustclip.constraints.batch import LogBounds
from trustclip.constraints.levels import Level


@definition
class Clip(Interval):
    r"""Clip: the ratio stays within a symmetric interval around 1 (PPO, GRPO).

    $$
    1 - \epsilon \le w_t \le 1 + \epsilon, \qquad w_t = \pi_\theta(y_t) / \pi_{old}(y_t)
    $$

    A step that would move an unsatisfied token further out is cut. ``level="sequence"`` measures
    and weighs by the mean log-ratio of the sequence, which is GSPO's surrogate; ``level="turn"``
    by that of an agent's turn, between two replies of a tool (SORL).

    Args:
      epsilon: half width of the interval, at most 1. 0.2 in PPO, TRL and verl.
      side: ``"outward"`` cuts only steps away from ratio 1, ``"strict"`` every unsatisfied token.
      level: ``"token"``, ``"prefix"``, ``"turn"`` or ``"sequence"``: where the ratio is measured.

    Example:
      >>> import trustclip as tc
      >>> [round(bound, 12) for bound in tc.interval("clip")]
      [0.8, 1.2]

    References:
      Schulman et al., `Proximal policy optimization algorithms
      <https://arxiv.org/abs/1707.06347>`_, 2017;
      Shao et al., `DeepSeekMath <https://arxiv.org/abs/2402.03300>`_, 2024;
      Li et al., `Stabilizing off-policy training for long-horizon LLM agent via turn-level
      importance sampling <https://arxiv.org/abs/2511.20718>`_, 2025
    """

    epsilon: ByToken[UpToOne] = 0.2
    side: gates.Side = "outward"
    level: Level = "token"

    def log_interval(self, p_old: Tensor | None = None) -> LogBounds:
        return intervals.log_offsets(self.epsilon, self.epsilon)
