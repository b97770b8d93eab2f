"""Doctests of modules whose third-party package has an environment of its own run there alone."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("verl") else ["src/trustclip/engines/verl*.py"]
