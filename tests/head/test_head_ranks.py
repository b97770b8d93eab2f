"""Heads whose vocabulary two ranks share, or whose weight they shard, against the whole head."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import NEVER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, float]:
    """The largest relative difference of each comparison on two ranks over gloo."""
    here = Path(__file__).parents[1] / "support"
    file = tmp_path_factory.mktemp("ranks") / "told.json"
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(here / "head_processes.py"), str(file)),
        ],
        capture_output=True, text=True, timeout=NEVER, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(file.read_text())


def test_a_shared_vocabulary_has_the_values_and_gradients_of_the_whole(told):
    """Parts of 450 and 250 tokens, each in tiles of 256; with a cap, and without."""
    shared = {name: error for name, error in told.items() if name.startswith("shared")}
    assert len(shared) == 4
    assert max(shared.values()) < 1e-11, shared


def test_its_exact_kl_is_that_of_the_whole(told):
    exact = {name: error for name, error in told.items() if name.startswith("exact KL")}
    assert len(exact) == 2
    assert max(exact.values()) < 1e-9, exact


def test_gradients_reach_dtensors_as_fsdp2_and_tensor_parallelism_expect_them(told):
    assert max(told[f"dtensor, {name}"] for name in ("tensor-parallel", "gathered")) < 1e-11


def test_sequences_that_ranks_share_have_the_loss_and_gradients_of_whole_ones(told):
    """7 and 5 tokens of each sequence, one of which ends on the first rank: every level, every
    aggregation, statistics of a batch, and all metrics."""
    found = {name: error for name, error in told.items() if name.startswith("sequences")}
    assert len(found) == 5
    assert max(found.values()) < 1e-11, found
