"""Verified rewards: a completion is scored by its final answer.

`Verifier` scores completions, `extract_answer` shows what it read in them, and the reward functions
put both into the signatures of TRL and verl.
"""

from trustclip.train.problems.verify.extraction import Style as Style
from trustclip.train.problems.verify.extraction import extract_answer as extract_answer
from trustclip.train.problems.verify.functions import AnswerReward as AnswerReward
from trustclip.train.problems.verify.functions import FormatReward as FormatReward
from trustclip.train.problems.verify.functions import SoftOverlong as SoftOverlong
from trustclip.train.problems.verify.functions import compute_score as compute_score
from trustclip.train.problems.verify.verifier import Verifier as Verifier
