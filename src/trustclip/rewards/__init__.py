"""Verified rewards: a completion is scored by its final answer.

`Verifier` scores completions, `extract_answer` shows what it read in them, and the reward functions
put both into the signatures of TRL and verl.
"""

from trustclip.rewards.extraction import Style as Style
from trustclip.rewards.extraction import extract_answer as extract_answer
from trustclip.rewards.functions import AnswerReward as AnswerReward
from trustclip.rewards.functions import FormatReward as FormatReward
from trustclip.rewards.functions import SoftOverlong as SoftOverlong
from trustclip.rewards.functions import answer_graded as answer_graded
from trustclip.rewards.functions import compute_score as compute_score
from trustclip.rewards.functions import format_approximate as format_approximate
from trustclip.rewards.functions import format_exact as format_exact
from trustclip.rewards.functions import number_graded as number_graded
from trustclip.rewards.verifier import Verifier as Verifier
