"""Verified rewards: a completion is scored by its final answer.

`Verifier` scores completions, `extract_answer` shows what it read in them, and the reward functions
put both into the signatures of TRL and verl.
"""

from trustclip.rewards.extraction import Style, extract_answer
from trustclip.rewards.functions import (
    AnswerReward,
    FormatReward,
    SoftOverlong,
    answer_graded,
    compute_score,
    format_approximate,
    format_exact,
    number_graded,
)
from trustclip.rewards.verifier import Verifier

__all__ = [
    "AnswerReward",
    "FormatReward",
    "SoftOverlong",
    "Style",
    "Verifier",
    "answer_graded",
    "compute_score",
    "extract_answer",
    "format_approximate",
    "format_exact",
    "number_graded",
]
