"""Real engines and services, in an environment of their own: `make real-setup`."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Programs, no places of tests.
collect_ignore = ["colocated.py", "llama_server.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all where the environment is another one, which has some of the pieces by chance."""
    if importlib.util.find_spec("vllm") is None:
        needs = pytest.mark.skip(reason="needs the environment of its own: make real-setup")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(needs)
