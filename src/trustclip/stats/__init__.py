"""Statistics for sampled answers: what a score, a difference and a family of claims are worth.

A score is an average over problems, each answered several times, sometimes by several training
runs. Answers to one problem are alike, so every interval here is clustered by problem, and a
comparison of two models pairs them problem by problem.
"""

from trustclip.stats.intervals import Interval, mean_interval, pass_interval
from trustclip.stats.paired import Difference, paired_difference
from trustclip.stats.power import (
    Budget,
    Comparison,
    Required,
    align,
    compare,
    required,
    verdict,
)
from trustclip.stats.runs import RunSummary, holm, welch
from trustclip.stats.scores import Tally, mean_at_k, mean_curve, pass_at_k, pass_curve, tally

__all__ = [
    "Budget",
    "Comparison",
    "Difference",
    "Interval",
    "Required",
    "RunSummary",
    "Tally",
    "align",
    "compare",
    "holm",
    "mean_at_k",
    "mean_curve",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "pass_curve",
    "pass_interval",
    "required",
    "tally",
    "verdict",
    "welch",
]
