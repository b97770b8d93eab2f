"""The ATR-GRPO paper's theorems on small explicit policies: both sides, in float64.

Each theorem is a function that returns both sides of its equation: one through the library's own
methods, divergences and intervals, the other by sums that share nothing with them. `run_theory`
runs them over random policies and prints which hold, which fail, and how.
"""

from trustclip_lab.theory.cases import Case, Sides, random_cases
from trustclip_lab.theory.table import CHECKS, run_theory
from trustclip_lab.theory.theorems import Check

__all__ = ["CHECKS", "Case", "Check", "Sides", "random_cases", "run_theory"]
