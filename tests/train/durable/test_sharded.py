"""Weights sharded over ranks: exact continuation, ranks that fail."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import test_ranks
import torch
from durable_runs import differences
from peft import PeftModel
from safetensors.torch import load_file
from test_ranks import Ended
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl_runs import fresh_model

pytestmark = pytest.mark.slow


def launched(command: str, folder: Path, *rest: str, ranks: int) -> Ended:
    """What became of ``sharded_processes.py`` under torch's launcher."""
    folder.mkdir(exist_ok=True)
    return test_ranks.launched(
        *(command, str(folder), *rest),
        ranks=ranks,
        program="sharded_processes.py",
    )


def told_by(command: str, folder: Path, *rest: str, ranks: int) -> dict:
    ended = launched(command, folder, *rest, ranks=ranks)
    assert ended.code == 0, ended.output[-3000:]
    return json.loads((folder / "told.json").read_text())


def moved(source: Path, target: Path, step: int) -> Path:
    """A copy of a run as it was when its checkpoint of a step was the newest."""
    (target / "checkpoints").mkdir(parents=True)
    shutil.copytree(source / "rows", target / "rows")
    for name in ("start.json", f"step-{step:06d}"):
        path = source / "checkpoints" / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target / "checkpoints" / name)
    return target


@pytest.mark.parametrize(("kind", "ranks"), [("fsdp2", 2), ("fsdp2+async", 4), ("fsdp2+lora", 2)])
def test_every_cut_leaves_the_same_bits(tmp_path, kind, ranks):
    told = told_by("cuts", tmp_path, kind, ranks=ranks)
    assert told["world"] == ranks
    assert told["wrapper"].startswith("FSDPPeft" if "lora" in kind else "FSDP")
    assert told["part"] < 0.6 if ranks == 2 else told["part"] < 0.3
    assert told["different"] == []
    names = {p.name for p in (tmp_path / "whole" / "checkpoints" / "step-000006").rglob("*")}
    assert not [name for name in names if name.endswith((".pt", ".bin", ".pkl", ".distcp"))]


@pytest.fixture(scope="module")
def two_of(tmp_path_factory) -> Callable[[str], tuple[Path, dict]]:
    """A run on two ranks of each kind that is asked for, with what its first rank told."""

    @cache
    def run(kind: str) -> tuple[Path, dict]:
        folder = tmp_path_factory.mktemp("two")
        return folder, told_by("train", folder, kind, ranks=2)

    return run


@pytest.fixture(scope="module")
def two(two_of) -> tuple[Path, dict]:
    return two_of("fsdp2")


def test_only_the_adapters_are_stored_of_a_model_that_keeps_its_weights(two_of):
    folder, _ = two_of("fsdp2+lora")
    parts = sorted((folder / "checkpoints" / "step-000006" / "shards").iterdir())
    assert len(parts) == 2
    for part in parts:
        weights = [name for name in load_file(part) if name.startswith("model.")]
        assert weights and all(".lora_A." in name or ".lora_B." in name for name in weights)


def test_adapters_end_whole_beside_the_model_that_they_were_merged_into(two_of):
    folder, _ = two_of("fsdp2+lora")
    adapter = load_file(folder / "final" / "adapter" / "adapter_model.safetensors")
    shards = (folder / "checkpoints" / "step-000006" / "shards").iterdir()
    stored = {name for part in shards for name in load_file(part) if name.startswith("model.")}
    assert len(adapter) == len(stored) and any(w.any() for n, w in adapter.items() if "_B." in n)
    base, _ = fresh_model()
    with_it = PeftModel.from_pretrained(base, str(folder / "final" / "adapter")).merge_and_unload()
    whole = AutoModelForCausalLM.from_pretrained(folder / "final")
    want, got = with_it.state_dict(), whole.state_dict()
    assert want.keys() == got.keys()
    assert all(torch.allclose(want[name], got[name], atol=1e-6) for name in want)


def test_a_whole_run_ends_with_a_model_that_transformers_loads(two):
    folder, _ = two
    model = AutoModelForCausalLM.from_pretrained(folder / "final")
    AutoTokenizer.from_pretrained(folder / "final")
    saved = model.state_dict()
    parts = sorted((folder / "checkpoints" / "step-000006" / "shards").iterdir())
    assert len(parts) == 2
    name = "model.layers.0.self_attn.q_proj.weight"
    joined = torch.cat([load_file(part)[f"model.{name}"] for part in parts])
    assert torch.equal(saved[name], joined)


@pytest.mark.parametrize(
    ("ranks", "changes", "words"),
    [
        (1, "{}", "was written by 2 ranks and this job has 1: start it again with 2."),
        (2, '{"per_device_train_batch_size": 8}', "per_device_train_batch_size was 4 and is 8"),
    ],
)
def test_other_ranks_or_completions_a_pass_are_another_training(
    tmp_path, two, ranks, changes, words
):
    other = moved(two[0], tmp_path / "moved", 3)
    ended = launched("train", other, "fsdp2", changes, ranks=ranks)
    assert ended.code == 1 and words in " ".join(ended.output.split())


def test_a_rank_without_room_leaves_the_last_checkpoint_on_all(tmp_path, two):
    told = told_by("full", tmp_path, "fsdp2", ranks=2)
    for message in told["messages"]:
        assert "while writing" in message and "rank 1: File too large" in message
        assert message.endswith("checkpoints/step-000003.")
    steps = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert steps == ["start.json", "step-000001", "step-000002", "step-000003"]


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp2+async"])
def test_a_rank_killed_as_it_saves_leaves_the_last_checkpoint(tmp_path, kind):
    ended = launched("kill", tmp_path / "run", kind, ranks=2)
    assert ended.code == 1 and "exitcode  : -9" in ended.output
    run, whole = tmp_path / "run", tmp_path / "whole"
    steps = sorted(p.name for p in (run / "checkpoints").glob("step-*"))
    assert steps == ["step-000001", "step-000002", "step-000003"]
    sparse = '{"logging_steps": 2}'
    told_by("train", whole, kind, sparse, ranks=2)
    told_by("train", run, kind, sparse, ranks=2)
    assert differences(whole, run, after=3) == []


def test_a_rank_that_lags_is_waited_for(tmp_path):
    told = told_by("lag", tmp_path, "fsdp2+async", ranks=2)
    assert told["complete"] and told["messages"] == ["", ""]
    assert (tmp_path / "checkpoints" / "step-000006").is_dir()
