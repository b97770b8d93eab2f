"""Tests that only some releases of a package can pass: `make test DEPENDENCIES=oldest`."""

from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_PINS = (Path(__file__).parents[2] / "requirements/run.txt").read_text("utf-8").splitlines()


def needs(requirement: str) -> pytest.MarkDecorator:
    """A test is skipped with another release than ``"name>=1"`` says; ``"name"`` is the pinned."""
    (pinned,) = [line for line in _PINS if line.startswith(f"{requirement}==")] or [requirement]
    wanted = Requirement(pinned)
    other = version(wanted.name) not in wanted.specifier
    return pytest.mark.skipif(other, reason=f"needs {pinned}")
