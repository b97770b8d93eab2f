# pyright: reportMissingImports=false
"""Engines that more than one file of tests loads."""

import sys
import typing
from typing import Any

import pytest


@pytest.fixture
def skyrl(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("skyrl", reason="skyrl is not installed here: make verl-setup")
    extensions = pytest.importorskip("typing_extensions")
    if sys.version_info < (3, 12):  # pydantic refuses the other one, and SkyRL 0.3 uses it
        monkeypatch.setattr(typing, "TypedDict", extensions.TypedDict)
    from skyrl.backends.skyrl_train.utils import ppo_utils

    return ppo_utils
