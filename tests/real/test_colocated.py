"""TRL's colocated vLLM, the engine itself, on a pretrained model: ``trustclip run``, to its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from patience import NEVER

CENTERED = {"name": "centered", "inner": "icepop"}
PROMPT = {"system": "Answer with one equation a line.", "answer": "any"}
RECIPE: dict[str, Any] = {
    "name": "few",
    "model": "smollm2",
    "output_dir": "out",
    "rl": {
        "dataset": "word-sums",
        "limit": 32,
        "prompt_style": "plain",
        "prompt": PROMPT,
        "reward": "format",
        "max_completion_length": 24,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "num_iterations": 1,
        "max_steps": 4,
        "learning_rate": 5e-5,
        "lora_r": 0,
        "use_vllm": True,
        "trl": {
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": 256,
            "vllm_importance_sampling_correction": False,
        },
    },
}


def begun(
    folder: Path, method: str, more: dict[str, Any] | None = None, **environment: str
) -> "subprocess.Popen[str]":
    """A run of four updates in two generations."""
    recipe = {**RECIPE, "rl": {**RECIPE["rl"], "method": {"name": method}, **(more or {})}}
    folder.mkdir(exist_ok=True)
    (folder / "few.yaml").write_text(yaml.safe_dump(recipe))
    around = {name: value for name, value in os.environ.items() if name != "MASTER_PORT"}
    return subprocess.Popen(
        [sys.executable, "-m", "real.colocated", "run", "few.yaml"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={
            **around,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            **environment,
        },
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]", folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Rows of ``metrics.jsonl``, and what was printed."""
    said, _ = process.communicate(timeout=NEVER)
    assert process.returncode == 0 and (folder / "out/final").is_dir(), said
    assert "Traceback" not in said, said
    rows = (folder / "out/metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows], said


def fresh(rows: list[dict[str, Any]]) -> list[float]:
    name = "trustclip/sampler/abs/lag_0"
    return [row[name] for row in rows if name in row]


def test_two_runs_at_once_sample_from_their_policies_before_and_after_an_update(tmp_path):
    """To kernels' rounding, so all new weights have arrived; each on a port of its own; and no
    traceback at the end."""
    methods = ("atr", "icepop")
    both = [begun(tmp_path / method, method) for method in methods]
    for method, process in zip(methods, both, strict=True):
        rows, _ = ended(process, tmp_path / method)
        assert len(fresh(rows)) == 2 and max(fresh(rows)) < 1e-4
        assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
        assert not [row for row in rows if row.get("notice") == "weight_sync"]


def test_a_transfer_that_reaches_nothing_is_told_in_the_next_generation(tmp_path):
    rows, said = ended(begun(tmp_path, "atr", COLOCATED_TRANSFERS="1"), tmp_path)
    first, second = fresh(rows)
    assert first < 1e-4 < 1e-3 < second
    (told,) = [row for row in rows if row.get("notice") == "weight_sync"]
    assert told["step"] == 3 and "the sampler left the policy" in said


def test_its_likeliest_tokens_center_an_update_and_replay_a_cut(tmp_path):
    """More of them than vLLM returns unasked, and where the two policies are one no drift."""
    cut = {"top_p": 0.9, "trl": {**RECIPE["rl"]["trl"], "top_k": 30}}
    runs = {
        "centered": begun(tmp_path / "centered", "centered", {"method": CENTERED}),
        "replayed": begun(tmp_path / "replayed", "icepop", {**cut, "replay": True}),
    }
    rows = {name: ended(process, tmp_path / name)[0] for name, process in runs.items()}
    seen = {name: [r for r in of if "trustclip/drift/share" in r] for name, of in rows.items()}
    for row in (*seen["centered"], *seen["replayed"]):
        fresh = row["trustclip/off_policy"] == 0  # the second update on a generation is not
        assert (row["trustclip/drift/share"] < 1e-9) == fresh and row["trustclip/drift/signal"] > 0
        assert row["trustclip/sampler/abs"] < 1e-4  # without a replay the kept mass, a tenth
    assert all(0.8 < row["trustclip/drift/covered"] <= 1 for row in seen["centered"])
    assert seen["centered"] and seen["replayed"]
    assert all(abs(row["trustclip/drift/covered"] - 1) < 1e-4 for row in seen["replayed"])
