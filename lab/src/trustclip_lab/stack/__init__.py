"""The lab: one method from many seeds at once, on problems small enough for that."""

from trustclip_lab.stack.run import Cell, cells, load, run_lab
from trustclip_lab.stack.settings import LabSettings
from trustclip_lab.stack.training import Trained, train

__all__ = ["Cell", "LabSettings", "Trained", "cells", "load", "run_lab", "train"]
