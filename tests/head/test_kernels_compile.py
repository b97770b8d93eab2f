"""The kernels are compiled, as the head launches them, for GPUs that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("triton", reason="Triton is not installed")

#: Compute capabilities: A100, H100 and H200, B200.
CAPABILITIES = ("80", "90", "100")


def test_every_kernel_compiles_for_every_generation_without_spilling(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/compiled_kernels.py"), *CAPABILITIES],
        env=os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {f"{name} sm_{cap}" for name in found["kernels"] for cap in CAPABILITIES}
    assert expected and expected == found["compiled"].keys(), "a kernel the head does not launch"
    for name, used in found["compiled"].items():
        assert used["registers"] <= 255 and used["local"] == used["stack"] == 0, (name, used)
