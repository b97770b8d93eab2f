"""verl's real FSDP2 training worker on CPU: two ranks do what one does."""

import json
from pathlib import Path
from typing import Any

import pytest
from engines.verl import processes
from patience import NEVER

pytest.importorskip("verl.trainer", reason="verl is not installed here: make verl-setup")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_folder import tiny_folder

    return tiny_folder(tmp_path_factory.mktemp("model"))


def updates(model: Path, ranks: int, folder: Path, losses: str = "trustclip") -> dict[str, Any]:
    out = folder / f"{losses}-{ranks}.json"
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    script = str(processes.HERE / "fsdp_worker.py")
    code, printed = processes.run(
        [*launch, script, str(model), str(out), losses],
        processes.environment(),
        folder,
        timeout=NEVER,
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


def test_a_watched_loss_trains_to_the_same_weights_bit_for_bit(model: Path, tmp_path: Path) -> None:
    stock, watched = (updates(model, 2, tmp_path, losses) for losses in ("stock", "watched"))
    assert watched["weights"] == stock["weights"]
    assert stock["updates"]
    seen = {}
    for plain, seen in zip(stock["updates"], watched["updates"], strict=True):
        assert {k: seen[k] for k in plain} == plain
        assert seen["grad_norm"] > 0 and 0 < seen["trustclip/gated"] < 1
        assert 0 < seen["trustclip/shadow/atr/gated"] < 1
    # verl's own count of the same, weighted by micro-batches, where its loss is the clip.
    assert seen["trustclip/gated"] == pytest.approx(
        seen["actor/pg_clipfrac"] + seen["actor/pg_clipfrac_lower"], abs=1e-6
    )
