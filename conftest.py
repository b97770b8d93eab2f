"""What pytest leaves out: packages with their own environment, chance, garbage, wandb's memory."""

import gc
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

_NEEDS = {
    "engines/verl/loss.py": "verl",
    "engines/verl/plugin.py": "verl",
    "engines/verl/watch.py": "verl",
}

collect_ignore_glob = [
    f"src/trustclip/{path}" for path, package in _NEEDS.items() if not find_spec(package)
]
# A plug-in of `make peers`: importing it puts our classes in the place of TRL's.
collect_ignore_glob.append("tests/campaigns/peers/*")
if not find_spec("verl"):
    collect_ignore_glob.append("tests/support/verl_calls.py")
if not find_spec("triton"):
    collect_ignore_glob += ["lab/src/trustclip_lab/bench/gpu/kernels.py", "lab/tests/gpu_path.py"]


if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # The same examples every time, on machines of any speed.
    settings.register_profile(
        "steady",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Leave all that has been imported out of the garbage collector's rounds.

    A trainer collects garbage when it starts, which would take longer than the training of a test.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def _wandb_reads_its_environment_again() -> Iterator[None]:
    """It does so once a process, and the tests before left it another one."""
    yield
    if teardown := getattr(sys.modules.get("wandb"), "teardown", None):
        teardown()
