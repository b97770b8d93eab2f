"""Statistics for sampled answers: intervals of scores, differences, and families of comparisons.

A score is an average over problems, each answered several times, sometimes by several training
runs. Answers to one problem are alike, so every interval here is clustered by problem, and a
comparison of two models pairs them problem by problem.
"""

from trustclip.stats.confidence import Interval as Interval
from trustclip.stats.confidence import RunSummary as RunSummary
from trustclip.stats.confidence import mean_interval as mean_interval
from trustclip.stats.confidence import pass_interval as pass_interval
from trustclip.stats.confidence import rate_interval as rate_interval
from trustclip.stats.differences import Difference as Difference
from trustclip.stats.differences import holm as holm
from trustclip.stats.differences import paired_difference as paired_difference
from trustclip.stats.differences import welch as welch
from trustclip.stats.power import FEW_SEEDS as FEW_SEEDS
from trustclip.stats.power import Required as Required
from trustclip.stats.power import required as required
from trustclip.stats.power import verdict as verdict
from trustclip.stats.scores import Tally as Tally
from trustclip.stats.scores import mean_curve as mean_curve
from trustclip.stats.scores import pass_curve as pass_curve
from trustclip.stats.scores import tally as tally
