"""The lab: one method from many seeds at once, on problems small enough for that."""

from trustclip.lab.run import Cell, cells, load, run_lab
from trustclip.lab.settings import LabSettings
from trustclip.lab.training import Trained, train

__all__ = ["Cell", "LabSettings", "Trained", "cells", "load", "run_lab", "train"]
