"""Doctests leave the kernels out where Triton is not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["kernels.py"]
