"""The lab: one method from many seeds at once, on problems small enough for that."""

from trustclip_lab.stack.run import Cell, cells, load, run_lab
from trustclip_lab.stack.settings import LabSettings
from trustclip_lab.stack.training import TrainingResult, train

__all__ = ["Cell", "LabSettings", "TrainingResult", "cells", "load", "run_lab", "train"]
