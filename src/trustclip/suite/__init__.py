"""A suite: methods x seeds x models from one file, resumable, with a table that says what the
differences are worth.
"""

from trustclip.suite.run import run_suite
from trustclip.suite.settings import SuiteSettings

__all__ = ["SuiteSettings", "run_suite"]
