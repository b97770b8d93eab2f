"""A suite: methods x seeds x models from one file, resumable, with a table of their differences.

The table gives every difference with its interval, p-value and verdict.
"""

from trustclip.train.suite.run import run_suite
from trustclip.train.suite.settings import SuiteSettings

__all__ = ["SuiteSettings", "run_suite"]
