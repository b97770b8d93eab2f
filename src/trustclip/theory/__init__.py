"""The ATR-GRPO paper's theorems on policies that can be written out: both sides, in float64.

Each theorem is a function that returns both sides of its equation: one through the library's own
methods, divergences and intervals, the other by sums that share nothing with them. `run_theory`
runs them over random policies and prints what holds, and what fails and how.
"""

from trustclip.theory.cases import Case, Sides, random_cases
from trustclip.theory.checks import Check
from trustclip.theory.run import CHECKS, run_theory

__all__ = ["CHECKS", "Case", "Check", "Sides", "random_cases", "run_theory"]
