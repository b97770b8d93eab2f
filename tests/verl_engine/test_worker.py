"""verl's real FSDP2 training worker on CPU: two ranks do what one does."""

import json
from pathlib import Path
from typing import Any

import pytest
from verl_engine import processes

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trustclip.recipes.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"))


def updates(model: Path, ranks: int, folder: Path) -> dict[str, Any]:
    out = folder / f"{ranks}.json"
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    script = str(processes.HERE / "fsdp_worker.py")
    code, printed = processes.run(
        [*launch, script, str(model), str(out)], processes.environment(), folder, timeout=240
    )
    assert code == 0, printed[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))


def test_two_ranks_do_what_one_does(model: Path, tmp_path: Path) -> None:
    one, two = (updates(model, ranks, tmp_path) for ranks in (1, 2))
    assert (one["world"], two["world"]) == (1, 2)
    assert one["backend"] == two["backend"] == "gloo"
    assert two["module"].startswith("FSDP") and two["sharded"] == "DTensor"
    print({k: (one[k], two[k]) for k in one if k != "updates"})
    for seen, same in zip(one["updates"], two["updates"], strict=True):
        for update in (seen, same):
            print({k: update[k] for k in ("loss", "grad_norm", "trustclip/gated")})
        assert seen["grad_norm"] > 0 and 0 < seen["trustclip/gated"] < 1
        for name in ("loss", "grad_norm"):
            assert same[name] == pytest.approx(seen[name], rel=2e-6)
        # Means of log-ratios cancel: 1e-6 is what float32 leaves of log-probabilities of order 5.
        assert same == pytest.approx(seen, rel=2e-6, abs=1e-6)
