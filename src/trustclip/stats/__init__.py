"""Statistics for sampled answers: intervals of scores, differences, and families of comparisons.

A score is an average over problems, each answered several times, sometimes by several training
runs. Answers to one problem are alike, so every interval here is clustered by problem, and a
comparison of two models pairs them problem by problem.
"""

from trustclip.stats.confidence import (
    Interval,
    RunSummary,
    mean_interval,
    pass_interval,
    rate_interval,
)
from trustclip.stats.differences import Difference, holm, paired_difference, welch
from trustclip.stats.power import (
    FEW_SEEDS,
    Budget,
    Required,
    required,
    verdict,
)
from trustclip.stats.scores import Tally, mean_at_k, mean_curve, pass_at_k, pass_curve, tally

__all__ = [
    "FEW_SEEDS",
    "Budget",
    "Difference",
    "Interval",
    "Required",
    "RunSummary",
    "Tally",
    "holm",
    "mean_at_k",
    "mean_curve",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "pass_curve",
    "pass_interval",
    "rate_interval",
    "required",
    "tally",
    "verdict",
    "welch",
]
