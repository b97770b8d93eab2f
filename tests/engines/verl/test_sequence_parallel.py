"""Sequences that verl's ranks share out reach the loss whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import NEVER

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")


def test_every_level_has_the_gradient_of_whole_sequences(tmp_path: Path) -> None:
    here, file = Path(__file__).parent, tmp_path / "told.json"
    helpers = str(here.parents[1] / "support")
    path = os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(here / "sequence_processes.py"), str(file)),
        ],
        capture_output=True, text=True, timeout=NEVER, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(file.read_text())
    assert len(found) == 3 and max(found) < 1e-12, found
