"""A suite on a Ray that it starts itself: real tasks, real runs."""

import os
import subprocess
import sys
import tempfile

import pytest
from real.few import written

pytest.importorskip("ray")

SUITE = (sys.executable, "-m", "trustclip", "suite")


def test_a_suite_of_two_runs(tmp_path):
    file = written(tmp_path)
    around = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # the names of its sockets are limited
        done = subprocess.run(
            [*SUITE, file.name, "--on=ray", "--gpus=0", "--cpus=1"],
            cwd=tmp_path, env=around | {"RAY_TMPDIR": short, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "out").glob("*-seed0*/summary.json"))) == 2
